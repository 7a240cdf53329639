"""SLO attainment, at a scale of base latencies or for targets, and the goodput of a sweep."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from muxcluster.workload.metrics.records import Records
from muxcluster.workload.metrics.window import latency_s, tpot_s, ttft_s

LEVEL = 0.99


@dataclass(frozen=True, slots=True)
class Goodput:
    """The highest rate at which requests keep their SLO (DistServe's goodput)."""

    passing: float  # highest rate of the sweep up to which all passed; 0 where the lowest failed
    interpolated: float  # where a line from there to the first failing rate meets the level
    is_capped: bool  # no rate failed, so the goodput is at least this


def attainment_at_scales(
    records: Records, base_s: ArrayLike, scales: Sequence[float]
) -> NDArray[np.float64]:
    """Return [len(scales)] shares of requests with an end-to-end latency ≤ scale · base.

    base_s: [n] seconds that each request takes alone on whole GPUs, full prefill and decode
    (MuxServe §4.1). Requests that did not finish, refused and aborted ones too, are misses; without
    requests the share is NaN. Raises ValueError unless every base is positive.
    """
    base = np.asarray(base_s, dtype=np.float64)
    if base.shape != (len(records),) or not (base > 0).all():
        raise ValueError(f"expected {len(records)} base latencies above 0, found {base.shape}")
    if not len(records):
        return np.full(len(scales), np.nan)
    needed = np.where(records.is_finished, latency_s(records) / base, np.inf)
    needed.sort()
    return np.searchsorted(needed, np.asarray(scales), side="right") / len(records)


def attainment_of_targets(records: Records, ttft: ArrayLike, tpot: ArrayLike) -> float:
    """Return the share of requests that finished with TTFT and TPOT within their targets.

    ttft, tpot: seconds, one for all or [n] in the order of the records; infinite for no target. A
    request of one token meets any TPOT. Misses and the empty case as in `attainment_at_scales`.
    """
    if not len(records):
        return float("nan")
    is_early = ttft_s(records) <= np.asarray(ttft, dtype=np.float64)
    is_fluent = np.nan_to_num(tpot_s(records), nan=0.0) <= np.asarray(tpot, dtype=np.float64)
    return float((records.is_finished & is_early & is_fluent).mean())


def goodput(rates: Sequence[float], attainments: Sequence[float], level: float = LEVEL) -> Goodput:
    """Return the goodput of a sweep; points may be in any order.

    Rates that pass beyond the first failing one do not count, because goodput claims all lower
    rates. Raises ValueError for an empty sweep, lengths that differ or a repeated rate.
    """
    points = sorted(zip(rates, attainments, strict=True))
    if not points or len({rate for rate, _ in points}) < len(points):
        raise ValueError("a sweep needs rates, each of them once")
    passing, passed = 0.0, None
    for rate, share in points:
        if not share >= level:
            line = passing if passed is None else _meet(passing, passed, rate, share, level)
            return Goodput(passing, line, is_capped=False)
        passing, passed = rate, share
    return Goodput(passing, passing, is_capped=True)


def _meet(low: float, above: float, high: float, below: float, level: float) -> float:
    """Return the rate at which the line through (low, above) and (high, below) is at `level`."""
    if np.isnan(below):
        return low
    return float(low + (high - low) * (above - level) / (above - below))
