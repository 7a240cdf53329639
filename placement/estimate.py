"""How busy a mesh is with the models placed on it, and what it serves of their demand."""

from collections.abc import Sequence
from dataclasses import dataclass

from placement.cost import CostModel
from placement.hardware import Gpu
from placement.memory import block_bytes, kv_blocks, sequence_blocks
from placement.problem import Demand, Limits
from placement.quota import split_blocks

_SHARING_LOSS = 1.1
"""A decode may take this much longer on fewer SMs than on all before it counts as slower."""


@dataclass(frozen=True, slots=True)
class ModelEstimate:
    """One model on one mesh. load: part of the mesh's time that it needs at its largest batch.

    batch: mean decode batch. prefill_share, decode_share: SM shares, rungs of the GPU.
    """

    demand: Demand
    quota_blocks: int
    load: float
    batch: float
    prefill_share: float
    decode_share: float


@dataclass(frozen=True, slots=True)
class UnitEstimate:
    """All models of one mesh."""

    kv_blocks: int
    models: tuple[ModelEstimate, ...]

    @property
    def load(self) -> float:
        """Above 1 the mesh is overloaded."""
        return sum(model.load for model in self.models)

    @property
    def served(self) -> float:
        """The part of the demand that is met, in (0, 1]."""
        return min(1.0, 1.0 / self.load) if self.load > 0 else 1.0


def estimate(gpu: Gpu, tp: int, demands: Sequence[Demand], limits: Limits) -> UnitEstimate:
    """The mesh of `tp` GPUs with `demands` (at least one) on it. Raises memory.DoesNotFit."""
    num_blocks = kv_blocks(gpu, tp, demands, limits)
    per_block = block_bytes(demands, limits)
    quotas = split_blocks(num_blocks, demands, per_block)
    models = []
    for demand, quota in zip(demands, quotas, strict=True):
        blocks = sequence_blocks(demand, max(1, round(demand.mean_tokens)), per_block)
        most = min(demand.max_seqs, max(1, quota // blocks))
        models.append(_model(CostModel(gpu, demand.itemsize), tp, demand, quota, most))
    return UnitEstimate(num_blocks, tuple(models))


def _model(cost: CostModel, tp: int, demand: Demand, quota: int, most: int) -> ModelEstimate:
    """most: largest decode batch that its KV blocks allow."""
    shape, context = demand.shape, demand.mean_tokens
    prefill_s = cost.prefill_s(shape, tp, 1.0, 1, demand.prompt_tokens)
    step_s = cost.decode_s(shape, tp, 1.0, most, context)
    load = demand.rate * (prefill_s + demand.output_tokens * step_s / most)
    batch = _mean_batch(cost, tp, demand, most)
    decode_share = _decode_share(cost, tp, demand, batch)
    return ModelEstimate(
        demand, quota, load, batch, _prefill_share(cost.gpu, decode_share), decode_share
    )


def _mean_batch(cost: CostModel, tp: int, demand: Demand, most: int) -> float:
    """Sequences decoding at once by Little's law, at least 1 and at most `most`."""
    batch = 1.0
    for _ in range(50):
        step_s = cost.decode_s(demand.shape, tp, 1.0, batch, demand.mean_tokens)
        wanted = min(float(most), max(1.0, demand.rate * demand.output_tokens * step_s))
        if abs(wanted - batch) < 0.01:
            break
        batch = wanted
    return batch


def _decode_share(cost: CostModel, tp: int, demand: Demand, batch: float) -> float:
    """The least rung at which decode is as good as on the whole GPU; it leaves one to prefill."""
    rungs = cost.gpu.shares
    context = demand.mean_tokens
    alone_s = cost.decode_s(demand.shape, tp, 1.0, batch, context)
    for share in rungs[:-1]:
        if cost.decode_s(demand.shape, tp, share, batch, context) <= _SHARING_LOSS * alone_s:
            return share
    return rungs[(len(rungs) - 1) // 2]


def _prefill_share(gpu: Gpu, decode_share: float) -> float:
    """The largest rung that runs beside `decode_share`."""
    beside = [share for share in gpu.shares if share <= 1 - decode_share + 1e-9]
    return beside[-1] if beside else gpu.shares[0]
