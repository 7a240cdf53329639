"""Served share of each model's demand in a unit: max-min fair within a bound ε."""

from collections.abc import Sequence

from muxcluster.placement.estimator.shares import Loads


def fractions(loads: Loads, values: Sequence[float], epsilon: float) -> tuple[float, ...]:
    """Return the served fraction of each model's demand, in [0, 1].

    R of a model (MuxServe §3.2: resources it uses, normalised by what its rate asks for) is this
    fraction, as use is proportional to what is served. All get the same R, except those whose own
    decode lane or whole demand ends earlier (max-min). `epsilon` > 0 allows R to differ by as much:
    up to half of it is taken from models whose `values` (objective per demand) are small for the
    resources they use, and given to the others.
    """
    resources = [part for part in loads.resources.values() if sum(part) > 0]
    caps = [1.0 if lane <= 1 else 1 / lane for lane in loads.lanes]
    level = min((_level(part, caps) for part in resources), default=1.0)
    fair = [min(cap, level) for cap in caps]
    if level >= 1 or epsilon <= 0 or len(fair) == 1:
        return tuple(fair)
    return _tilted(fair, caps, resources, values, epsilon / 2)


def _level(part: Sequence[float], caps: Sequence[float]) -> float:
    """Return the common fraction at which a resource is full; each model stops at its own cap."""
    if sum(cap * load for cap, load in zip(caps, part, strict=True)) <= 1:
        return 1.0
    left, weight = 1.0, sum(part)
    for cap, load in sorted(zip(caps, part, strict=True)):
        if weight * cap >= left:
            return left / weight
        left -= cap * load
        weight -= load
    return 1.0


def _tilted(
    fair: Sequence[float],
    caps: Sequence[float],
    resources: Sequence[Sequence[float]],
    values: Sequence[float],
    half: float,
) -> tuple[float, ...]:
    """Lower all by `half`, then raise them by up to twice that, most value per resource first."""
    order = sorted(
        range(len(fair)),
        key=lambda index: values[index] / max(max(part[index] for part in resources), 1e-300),
        reverse=True,
    )
    lowest = [max(0.0, share - half) for share in fair]
    left = [1 - sum(s * load for s, load in zip(lowest, part, strict=True)) for part in resources]
    served = list(lowest)
    for index in order:
        room = min(caps[index], fair[index] + half) - lowest[index]
        for part, rest in zip(resources, left, strict=True):
            if part[index] > 0:
                room = min(room, max(0.0, rest) / part[index])
        served[index] += room
        left = [rest - room * part[index] for part, rest in zip(resources, left, strict=True)]
    return tuple(served)


def within_loads(loads: Loads, served: Sequence[float]) -> tuple[float, ...]:
    """Return `served`, lowered to what every resource carries at the largest batches: so no estimate
    is better than the modes of the relaxation that bounds it."""
    capped = [
        min(share, 1 / lane) if lane > 1 else share
        for share, lane in zip(served, loads.lanes, strict=True)
    ]
    most = max(
        sum(load * share for load, share in zip(part, capped, strict=False))
        for part in loads.resources.values()
    )
    return tuple(share / max(1.0, most) for share in capped)
