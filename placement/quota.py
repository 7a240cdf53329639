"""The first division of a unit's KV blocks among its models."""

from collections.abc import Sequence

from placement.memory import sequence_blocks
from placement.problem import Demand


def split_blocks(
    num_blocks: int, demands: Sequence[Demand], bytes_per_block: int
) -> tuple[int, ...]:
    """Blocks per model, in the order of `demands`, summing to `num_blocks`.

    Each gets one sequence of its greatest length where all of these fit together; the rest goes by
    rate x KV bytes per token x mean length (MuxServe §3.3). `num_blocks` is ≥ 0.
    """
    floors = [sequence_blocks(each, each.max_model_len, bytes_per_block) for each in demands]
    if sum(floors) > num_blocks:
        return _proportional(num_blocks, floors)
    weights = [each.rate * each.kv_bytes_per_token * each.mean_tokens for each in demands]
    rest = _proportional(num_blocks - sum(floors), weights)
    return tuple(floor + extra for floor, extra in zip(floors, rest, strict=True))


def _proportional(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Whole parts of `total` by positive weights; what rounding leaves goes to the largest."""
    scale = sum(weights)
    parts = [int(total * (weight / scale)) for weight in weights]
    parts[max(range(len(weights)), key=weights.__getitem__)] += total - sum(parts)
    return tuple(parts)
