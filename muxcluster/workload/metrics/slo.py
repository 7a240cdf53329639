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
    """The highest rate at which requests keep their SLO (DistServe's goodput).

    passing: highest rate of the sweep up to which every rate passed; 0 where the lowest failed.
    interpolated: where a straight line from there to the first failing rate meets the level.
    is_capped: no rate failed, so the goodput is at least that.
    """

    passing: float
    interpolated: float
    is_capped: bool


def attainment_at_scales(
    records: Records, base_s: ArrayLike, scales: Sequence[float]
) -> NDArray[np.float64]:
    """[len(scales)] share of the requests with an end-to-end latency of at most scale · base.

    base_s: [n] seconds, in the order of the records: what each takes alone on whole GPUs, full
    prefill and decode (MuxServe §4.1). A request that did not finish is a miss, refused and aborted
    ones too; without requests the share is NaN. Raises ValueError unless every base is positive.
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
    """Share of the requests that finished with TTFT and TPOT within their targets.

    ttft, tpot: seconds, one for all or [n] in the order of the records; infinite for no target. A
    request of one token keeps any TPOT. Misses and the empty case as in `attainment_at_scales`.
    """
    if not len(records):
        return float("nan")
    is_early = ttft_s(records) <= np.asarray(ttft, dtype=np.float64)
    is_fluent = np.nan_to_num(tpot_s(records), nan=0.0) <= np.asarray(tpot, dtype=np.float64)
    return float((records.is_finished & is_early & is_fluent).mean())


def goodput(rates: Sequence[float], attainments: Sequence[float], level: float = LEVEL) -> Goodput:
    """The goodput of a sweep, whose points may come in any order.

    What passes beyond the first failing rate does not count: a claim of a rate is a claim of all
    lower ones. Raises ValueError for an empty sweep, lengths that differ or a rate twice.
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
    """The rate at which the line through (low, above) and (high, below) is at `level`."""
    if np.isnan(below):
        return low
    return float(low + (high - low) * (above - level) / (above - below))
