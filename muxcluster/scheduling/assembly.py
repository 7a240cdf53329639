"""Building a scheduler's parts from a unit's specification."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from muxcluster.core.backends import DENSE
from muxcluster.core.job import Phase
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec
from muxcluster.kvcache.cache import KvCache, ModelCache
from muxcluster.kvcache.model import KvModel
from muxcluster.scheduling.lanes import LANES
from muxcluster.scheduling.lanes.adbs import AdbsLane
from muxcluster.scheduling.lanes.mixed import MixedLane
from muxcluster.scheduling.lanes.unsharing import SharingJudge, UnsharingLane
from muxcluster.scheduling.lanes.view import Lane
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.memory.quotas import floors, split, weights
from muxcluster.scheduling.packing.batch import Limits
from muxcluster.scheduling.residency import POLICIES
from muxcluster.scheduling.residency.moves import WeightMoves, resident_at_start
from muxcluster.scheduling.shares import ShareLedger
from muxcluster.scheduling.state.model import LoadMeter, ModelState
from muxcluster.scheduling.steptime.learn import CopyTimes
from muxcluster.scheduling.steptime.model import StepTimes
from muxcluster.scheduling.steptime.seed import Seed

_RATE_PERIODS = 4.0  # time constant of measured rates, in quota periods

Policy = TypeVar("Policy")


def chosen(policies: Mapping[str, Policy], name: str, what: str) -> Policy:
    """Return the policy of that name. Raises ValueError listing the names there are."""
    if name not in policies:
        raise ValueError(f"unknown {what} {name!r}: one of {', '.join(sorted(policies))}")
    return policies[name]


# Until it is measured: time from token to token.
_PLANNED_STEP_S = 0.05


def model_state(
    spec: ModelSpec, unit: UnitSpec, kv: ModelCache, *, keeps_output: bool
) -> ModelState:
    """Return a model without requests, with its planned load. keeps_output: see RunningTable."""
    meter = LoadMeter(
        spec.rate_per_s,
        spec.mean_prompt_tokens,
        spec.mean_output_tokens,
        _PLANNED_STEP_S,
        _RATE_PERIODS * unit.scheduler.quota_period_s,
    )
    most = unit.scheduler.token_budget
    return ModelState(spec, kv, meter, keeps_output=keeps_output, most_tokens=most)


def limits(policy: SchedulerSpec, max_steps: int) -> Limits:
    """Return the bounds of a job. max_steps: most decode steps of one."""
    return Limits(
        policy.token_budget,
        policy.max_decode_rows,
        max_steps,
        policy.ageing_s,
        policy.first_rows,
        policy.more_rows,
    )


def step_times(unit: UnitSpec, seed: Seed | None, *, is_simulated: bool) -> StepTimes:
    """Return what predicts the time of jobs. seed: what is known of it before the first."""
    slot_bytes = {each.name: 2 * each.shape.slot_bytes for each in unit.models}
    # On a CPU copies take the forward's own cores; what is simulated are GPUs.
    overlap = is_simulated or unit.device != "cpu"
    return StepTimes(seed, CopyTimes(slot_bytes, unit.host_link or None, overlap=overlap))


def lane(
    unit: UnitSpec, times: StepTimes, *, is_predicting: bool, own: Lane | None = None
) -> tuple[Lane, SharingJudge | None]:
    """Return the lane, and what may stop its sharing.

    is_predicting: the packing feeds `times`. own: a lane in place of the one that is named.
    Raises ValueError for an unknown lane.
    """
    if own is not None:
        return own, None
    kind = chosen(LANES, unit.scheduler.lane, "lane")
    has_all = any(each.shares[-1] == 1.0 and Phase.MIXED in each.phases for each in unit.workers)
    if kind is not AdbsLane or not (unit.scheduler.may_unshare and has_all):
        return kind(), None
    if len(unit.workers) == 1:
        return MixedLane(uses_quotas=True), None  # nobody to share with, as if it never paid
    judge = SharingJudge(times, learns=not is_predicting)
    return UnsharingLane(judge), judge


def check_workers(name: str, phases: Iterable[Phase], shares: ShareLedger) -> None:
    """Raise ValueError where the lane `name` has a phase that no worker runs."""
    for phase in sorted(phases):
        if not shares.supports(phase):
            raise ValueError(f"lane {name!r} needs a worker that runs {phase}")


def weight_moves(
    unit: UnitSpec, models: Sequence[ModelState], memory: Memory, shares: ShareLedger
) -> WeightMoves | None:
    """Return what moves weights; None where all models are always resident.

    Raises ValueError for an unknown policy, and as `WeightMoves` does.
    """
    policy = chosen(POLICIES, unit.scheduler.wakes, "policy of wakes")
    if not unit.resident_bytes:
        return None
    return WeightMoves(unit, models, memory, shares, policy())


def kv_cache(unit: UnitSpec, *, has_block_ids: bool, lends: bool) -> KvCache:
    """Return the unit's cache, without quotas. lends: sequences lend blocks, which have ids."""
    return KvCache(
        unit.num_blocks,
        unit.block_bytes,
        _kv_models(unit, unit.scheduler.shared_prefix_tokens if has_block_ids else 0),
        {},
        has_block_ids=has_block_ids or lends,
        num_host_blocks=unit.num_host_blocks if lends else 0,
        is_bidirectional=lends,
        saves_lazily=unit.scheduler.saves_lazily,
    )


def carried_blocks(
    kv: KvCache, unit: UnitSpec, models: Sequence[ModelState], *, uses_quotas: bool
) -> dict[str, int]:
    """Return the blocks that one sequence of each model can always count on, by model name.

    With quotas the pool is split among the models that are resident at the start by what planned
    requests would hold, no model below its floor, and these quotas are set; the others have none.
    Raises ValueError where the pool cannot hold one column of each model.
    """
    least = floors(models, kv.num_blocks, unit.resident_bytes)
    if not uses_quotas:
        return {model.name: kv.num_blocks for model in models}
    names = resident_at_start(unit)
    awake = [model for model in models if model.name in names]
    quotas = dict.fromkeys(least, 0)
    kv.set_quotas(quotas | split(awake, weights(models), least, kv.num_blocks))
    return least


def _kv_models(unit: UnitSpec, shared_tokens: int) -> tuple[KvModel, ...]:
    """Models of our own attention: its rows read shared cached blocks once for all."""
    return tuple(
        KvModel(
            m.name,
            m.shape,
            m.num_rows,
            m.max_model_len,
            m.prefix_caching,
            0 if m.backend == DENSE else shared_tokens,
            m.is_positional,
            m.window,
            m.window_layers,
            m.state_columns,
        )
        for m in unit.models
    )
