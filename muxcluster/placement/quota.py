"""Initial division of a unit's KV blocks among its models."""

from collections.abc import Sequence


def split_blocks(
    num_blocks: int, floors: Sequence[int], weights: Sequence[float]
) -> tuple[int, ...]:
    """Return quotas that sum to `num_blocks` (≥ 0), in the order of the models.

    They are in proportion to `weights` (KV bytes that each model's sequences hold, MuxServe §3.3),
    but none is below its floor, one sequence of the greatest length, if the floors fit together.
    """
    if sum(floors) > num_blocks:
        return _proportional(num_blocks, floors)
    quotas = list(floors)
    raised = list(range(len(floors)))
    while raised:
        rest = num_blocks - sum(
            quotas[index] for index in range(len(quotas)) if index not in raised
        )
        parts = _proportional(rest, [weights[index] for index in raised])
        low = [index for index, part in zip(raised, parts, strict=True) if part < floors[index]]
        if not low:
            for index, part in zip(raised, parts, strict=True):
                quotas[index] = part
            break
        raised = [index for index in raised if index not in low]
    return tuple(quotas)


def _proportional(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Divide `total` in proportion to the weights; the heaviest gets the rest of rounding."""
    scale = sum(weights)
    parts = [int(total * (weight / scale)) for weight in weights]
    parts[max(range(len(weights)), key=weights.__getitem__)] += total - sum(parts)
    return tuple(parts)
