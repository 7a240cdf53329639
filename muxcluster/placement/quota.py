"""Initial division of a unit's KV blocks among its models."""

from collections.abc import Sequence


def split_blocks(
    num_blocks: int, floors: Sequence[int], weights: Sequence[float]
) -> tuple[int, ...]:
    """Return quotas that sum to `num_blocks` (≥ 0), in the order of the models.

    If the floors (one sequence of the greatest length each) fit together, each model gets its floor
    and the rest is divided by `weights`: rate x KV bytes of a mean sequence (MuxServe §3.3).
    """
    if sum(floors) > num_blocks:
        return _proportional(num_blocks, floors)
    rest = _proportional(num_blocks - sum(floors), weights)
    return tuple(floor + extra for floor, extra in zip(floors, rest, strict=True))


def _proportional(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Divide `total` in proportion to the weights; the heaviest gets the rest of rounding."""
    scale = sum(weights)
    parts = [int(total * (weight / scale)) for weight in weights]
    parts[max(range(len(weights)), key=weights.__getitem__)] += total - sum(parts)
    return tuple(parts)
