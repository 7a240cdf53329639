"""The unit that BlendServe's workloads run on, and the least time that its cost model permits."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np
from scipy.optimize import linprog

from bench.offline.blending.traces import BLOCK_TOKENS
from muxcluster.core.job import Phase
from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec
from muxcluster.offline.choice import JobSummary
from muxcluster.placement.cost import Roofline
from muxcluster.placement.cost.resources import resource_model
from muxcluster.placement.execution import Execution, UnitPolicy, executions, scheduler_of
from muxcluster.placement.hardware import gpu_named
from muxcluster.placement.shapes.known import shape_named
from muxcluster.sim.core.unit import SimModel, SimUnit

SHAPE, GPU = shape_named("llama-3.1-8b"), gpu_named("A100-80GB")
RESOURCES = resource_model(SHAPE, GPU)
COST = Roofline(GPU)
KV_BYTES = 58e9
MAX_LEN = 131_072
BUDGET_TOKENS = 8192
# Chunks of so many tokens take about as long as a decode step over a full pool, with which a mixed
# job then overlaps most.
SMALL_BUDGET_TOKENS = 1024
MOST_ROWS = 1024
_BUDGETS = (256, 512, 1024, 2048, 4096, 8192)  # of the mixed jobs that `permitted` may mix


class Lane(Enum):
    """A way to run that a user can ask for; each one's workers and rungs are those that ship."""

    SPLIT = "split"  # prefill beside decode on SM partitions
    MIXED = "mixed"  # prompt chunks and decodes in one job on all SMs
    MIXED_SMALL = "mixed, small chunks"


def execution_in(lane: Lane) -> Execution:
    """Return how a unit of one model on one GPU runs in `lane`."""
    partition = "mps" if lane is Lane.SPLIT else "none"
    policy = UnitPolicy(SchedulerSpec(lane="adbs"), partition=partition)
    (found,) = executions(GPU, 1, 1, policy)
    return found


def make_unit(lane: Lane) -> SimUnit:
    """Return the unit that runs so, with memory and slots for a batch job alone."""
    shape = KvShape(SHAPE.num_layers, SHAPE.num_kv_heads, SHAPE.head_dim, 2)
    per_block = block_bytes(BLOCK_TOKENS, 2)
    model = ModelSpec("m", "", shape, SHAPE.vocab_size, MAX_LEN, (), max_seqs=2 * MOST_ROWS)
    execution = execution_in(lane)
    budget = SMALL_BUDGET_TOKENS if lane is Lane.MIXED_SMALL else BUDGET_TOKENS
    policy = UnitPolicy(SchedulerSpec(max_decode_rows=MOST_ROWS))
    spec = UnitSpec(
        "u",
        (model,),
        int(KV_BYTES) // per_block,
        per_block,
        execution.workers,
        scheduler_of(execution, policy, budget),
    )
    return SimUnit(spec, {"m": SimModel(SHAPE, COST)})


@dataclass(frozen=True, slots=True)
class Permitted:
    """What the cost model permits."""

    seconds: float  # the least there are, by changing between all lanes, rungs and chunk sizes
    split_s: float  # by changing between the rungs and one phase at a time alone
    mixed_s: float  # by changing between chunk sizes of mixed jobs and one phase at a time
    serial_s: float  # one phase at a time throughout


def permitted(summary: JobSummary) -> Permitted:
    """For a job as a whole: full prefill jobs that compute nothing twice, and decode steps over a
    full pool, as many rows as that holds at the job's mean, so that weights are read least often.
    """
    full = _Full(summary)
    alone = full.side_by_side(1.0, 1.0)
    serial = [(1 / alone[0], 0.0), (0.0, 1 / alone[1])]
    split = [_rates(full.side_by_side(*shares)) for shares in _splits()]
    mixed = [full.mixed(budget) for budget in _BUDGETS]
    return Permitted(
        _least_s([*serial, *split, *mixed]),
        _least_s([*serial, *split]),
        _least_s([*serial, *mixed]),
        sum(alone),
    )


def _splits() -> list[tuple[float, float]]:
    """Return the SM shares of prefill and decode side by side that the unit's rungs permit."""
    shared = execution_in(Lane.SPLIT)
    decodes = shared.rungs(Phase.DECODE)
    pairs = []
    for prefill in shared.rungs(Phase.PREFILL):
        beside = [each for each in decodes if prefill + each <= 1.0 + 1e-6]
        if beside:
            pairs.append((prefill, max(beside)))
    return pairs


def _rates(seconds: tuple[float, float]) -> tuple[float, float]:
    return 1 / seconds[0], 1 / seconds[1]


def _least_s(modes: Iterable[tuple[float, float]]) -> float:
    """Return the least sum of seconds in the modes with which all prefill and decode is done.

    modes: the shares of all prefill and of all decode that each does a second.
    """
    columns = np.array(list(modes)).T
    found = linprog(np.ones(columns.shape[1]), A_eq=columns, b_eq=np.ones(2))
    return float(found.fun)


class _Full:
    """A job as full prefill jobs, and decode steps over a full pool."""

    def __init__(self, summary: JobSummary) -> None:
        self._num_computed = summary.prompt_tokens * (1 - summary.sharing)
        self._prompt = summary.prompt_tokens / summary.num_requests
        read_tokens = summary.memory_s / RESOURCES.kv_s
        pool_tokens = KV_BYTES / RESOURCES.kv_bytes
        self._rows = min(MOST_ROWS, summary.output_tokens * pool_tokens / read_tokens)
        self._context = read_tokens / summary.output_tokens
        self._num_steps = summary.output_tokens / self._rows

    def side_by_side(self, prefill_share: float, decode_share: float) -> tuple[float, float]:
        """Return the seconds of all prefill and of all decode at these SM shares; side by side
        where they are not all.
        """
        prefill = (SHAPE, 1, prefill_share, BUDGET_TOKENS / self._prompt, self._prompt)
        decode = (SHAPE, 1, decode_share, self._rows, self._context)
        slowdown = 1.0
        if decode_share < 1.0:
            slowdown = COST.slowdown((COST.prefill_draw(*prefill), COST.decode_draw(*decode)))
        prefill_s = self._num_computed / BUDGET_TOKENS * COST.prefill_s(*prefill)
        decode_s = self._num_steps * COST.decode_s(*decode)
        return slowdown * prefill_s, slowdown * decode_s

    def mixed(self, budget: int) -> tuple[float, float]:
        """Return the shares of all prefill and of all decode that mixed jobs do a second, each of a
        chunk and a decode step.
        """
        prefill_s = COST.prefill_s(SHAPE, 1, 1.0, budget / self._prompt, self._prompt)
        decode_s = COST.decode_s(SHAPE, 1, 1.0, self._rows, self._context)
        job_s = COST.mixed_s(SHAPE, 1, 1.0, prefill_s, decode_s)
        return budget / self._num_computed / job_s, 1 / self._num_steps / job_s
