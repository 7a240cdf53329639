"""Initial division of a unit's KV blocks among its models."""

from collections.abc import Sequence


def split_blocks(
    num_blocks: int,
    floors: Sequence[int],
    weights: Sequence[float],
    most: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Return quotas that sum to `num_blocks` (≥ 0), in the order of the models.

    They are in proportion to `weights` (KV bytes that each model's sequences hold, MuxServe §3.3),
    but none is below its floor, one sequence of the greatest length, if the floors fit together;
    and none above `most`, what all its rows can hold, while another one can use the rest.
    """
    if sum(floors) > num_blocks:
        return _proportional(num_blocks, floors)
    pinned: dict[int, int] = {}
    while True:
        quotas = _within(num_blocks, weights, most, pinned)
        low = [index for index, floor in enumerate(floors) if quotas[index] < floor]
        if not low:
            return tuple(quotas)
        pinned.update((index, floors[index]) for index in low)


def _within(
    num_blocks: int, weights: Sequence[float], most: Sequence[int] | None, pinned: dict[int, int]
) -> list[int]:
    """Return quotas in proportion, those of `pinned` as given, none above `most` if possible."""
    full = dict(pinned)
    while True:
        others = [index for index in range(len(weights)) if index not in full]
        rest = num_blocks - sum(full.values())
        parts = _proportional(rest, [weights[index] for index in others]) if others else ()
        found = full | dict(zip(others, parts, strict=True))
        high = [index for index in others if most is not None and found[index] > most[index]]
        if not high or len(high) == len(others) or most is None:
            return [found[index] for index in range(len(weights))]
        full.update((index, most[index]) for index in high)


def _proportional(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Divide `total` in proportion to the weights; the heaviest gets the rest of rounding."""
    scale = sum(weights)
    parts = [int(total * (weight / scale)) for weight in weights]
    parts[max(range(len(weights)), key=weights.__getitem__)] += total - sum(parts)
    return tuple(parts)
