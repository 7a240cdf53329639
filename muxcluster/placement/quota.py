"""Initial division of a unit's KV blocks among its models."""

import math
from collections.abc import Sequence

_LEAST_AWAKE = 1e-3  # part of the time: less is as good as that
_FINENESS = 1000


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


def split_among_awake(
    num_blocks: int,
    floors: Sequence[int],
    weights: Sequence[float],
    most: Sequence[int],
    awake: Sequence[float],
) -> tuple[int, ...]:
    """Return what each model has while it is awake, if each is for a part `awake` of the time.

    A parked model has no blocks, so the others have more: the means over time sum to `num_blocks`,
    or less where all have `most`. In proportion to `weights`, as `split_blocks`.
    """
    # in thousandths of a block, as a part of one may be much while a model is rarely awake
    parts = [max(_LEAST_AWAKE, part) * _FINENESS for part in awake]
    means = split_blocks(
        num_blocks * _FINENESS,
        [math.ceil(blocks * part) for blocks, part in zip(floors, parts, strict=True)],
        [weight * part for weight, part in zip(weights, parts, strict=True)],
        [math.ceil(blocks * part) for blocks, part in zip(most, parts, strict=True)],
    )
    return tuple(
        min(num_blocks, blocks, int(mean / part))
        for blocks, mean, part in zip(most, means, parts, strict=True)
    )
