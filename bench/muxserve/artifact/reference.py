"""A published run as units of our simulator: meshes, KV pools, sequence quotas, SM shares."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from bench.muxserve.artifact.lane import ReferenceLane, share_of, workers_of
from bench.muxserve.artifact.published import Mesh, Run, Served
from muxcluster.core.job import Phase, WorkerSpec
from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec
from muxcluster.placement.cost import Cost
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.placement.shapes.shape import ModelShape
from muxcluster.sim.core.unit import SimModel, SimUnit

GPU = GPUS["A100-80GB"]
_ITEMSIZE = 2
_BLOCK_TOKENS = 32
# What the reference takes a sequence to hold when it divides its cache into sequences.
_QUOTA_TOKENS = 416
_TOKEN_BUDGET = 2048
_QUOTA_PERIOD_S = 8.0
_MAX_MODEL_LEN = 2048
_MAX_SEQS = 2048
_UPLOAD_S = {"llama-7b": 1.0e-4, "llama-13b": 0.8e-4}
# Block tables sent to the GPU in each decode step, a sequence (ESTIMATOR.md).
_UPLOAD_LARGE_S = 0.7e-4


class ReferenceCost:
    """`cost` of one of the reference's models, with its block-table upload."""

    def __init__(self, cost: Cost, name: str, real_share: Callable[[float], float] = float) -> None:
        """real_share: the SM share that the profile knows of one that the lane gave."""
        self._cost = cost
        self._real_share = real_share
        self._upload_s = _UPLOAD_S.get(name, _UPLOAD_LARGE_S)

    def prefill_s(
        self, model: ModelShape, tp: int, share: float, batch: float, prompt_tokens: float
    ) -> float:
        """As measured."""
        return self._cost.prefill_s(model, tp, self._real_share(share), batch, prompt_tokens)

    def decode_s(
        self, model: ModelShape, tp: int, share: float, batch: float, context: float
    ) -> float:
        """As measured, and the upload of `batch` block tables."""
        seconds = self._cost.decode_s(model, tp, self._real_share(share), batch, context)
        return seconds + batch * self._upload_s

    def mixed_s(
        self, model: ModelShape, tp: int, share: float, prefill_s: float, decode_s: float
    ) -> float:
        """As of any parts of such seconds."""
        return self._cost.mixed_s(model, tp, self._real_share(share), prefill_s, decode_s)

    def turn_s(self, rows: float, new: float) -> float:
        """As measured."""
        return self._cost.turn_s(rows, new)

    def prefill_draw(
        self, model: ModelShape, tp: int, share: float, batch: float, prompt_tokens: float
    ) -> float:
        """As measured."""
        return self._cost.prefill_draw(model, tp, self._real_share(share), batch, prompt_tokens)

    def decode_draw(
        self, model: ModelShape, tp: int, share: float, batch: float, context: float
    ) -> float:
        """What is moved is as much, over a longer time."""
        measured = self._cost.decode_s(model, tp, self._real_share(share), batch, context)
        longer = self.decode_s(model, tp, share, batch, context)
        draw = self._cost.decode_draw(model, tp, self._real_share(share), batch, context)
        return draw * measured / longer

    def slowdown(self, draws: Sequence[float]) -> float:
        """As measured."""
        return self._cost.slowdown(draws)


def units_of_run(run: Run, cost: Cost) -> tuple[SimUnit, ...]:
    """One unit a mesh, in the order of the run's."""
    return tuple(
        _unit(run, mesh, f"{run.system}-{index}", cost) for index, mesh in enumerate(run.meshes)
    )


def _unit(run: Run, mesh: Mesh, unit_id: str, cost: Cost) -> SimUnit:
    width = block_bytes(_BLOCK_TOKENS, _ITEMSIZE)
    pool = int(mesh.kv_share * mesh.tp * GPU.memory_bytes)
    lane = "adbs" if run.system == "muxserve" else "temporal"
    spec = UnitSpec(
        unit_id=unit_id,
        models=tuple(_model(model, pool, mesh.tp) for model in mesh.models),
        num_blocks=pool // width // mesh.tp,
        block_bytes=width,
        workers=workers_of(mesh.models) if run.has_shares else _workers(lane, mesh.models),
        scheduler=SchedulerSpec(
            lane=lane,
            token_budget=_TOKEN_BUDGET,
            max_decode_rows=_MAX_SEQS,
            quota_period_s=_QUOTA_PERIOD_S,
        ),
        tp=mesh.tp,
    )
    real_share: Callable[[float], float] = share_of if run.has_shares else float
    models = {
        model.name: SimModel(SHAPES[model.shape], ReferenceCost(cost, model.shape, real_share))
        for model in mesh.models
    }
    return SimUnit(spec, models, lane=ReferenceLane(mesh.models) if run.has_shares else None)


def _model(model: Served, pool: int, tp: int) -> ModelSpec:
    """One rank's part, of a pool of all ranks."""
    shape = SHAPES[model.shape]
    kv = KvShape(shape.num_layers, shape.num_kv_heads, shape.head_dim, _ITEMSIZE)
    seqs = pool // (_QUOTA_TOKENS * kv.bytes_per_token)
    return ModelSpec(
        name=model.name,
        path="",
        shape=replace(kv, num_kv_heads=kv.num_kv_heads // tp),
        vocab_size=shape.vocab_size,
        max_model_len=_MAX_MODEL_LEN,
        eos_token_ids=(),
        max_seqs=max(1, min(_MAX_SEQS, seqs)),
        prefix_caching=False,
        rate_per_s=model.rate_per_s,
        mean_prompt_tokens=model.prompt,
        mean_output_tokens=model.output,
        weight_bytes=shape.active_params * _ITEMSIZE // tp,
    )


def _workers(lane: str, models: Sequence[Served]) -> tuple[WorkerSpec, ...]:
    if lane == "temporal":
        return (WorkerSpec(0, (1.0,)),)
    prefill = WorkerSpec(0, GPU.shares, frozenset({Phase.PREFILL}))
    decodes = (
        WorkerSpec(1 + index, GPU.shares, frozenset({Phase.DECODE})) for index in range(len(models))
    )
    return (prefill, *decodes)
