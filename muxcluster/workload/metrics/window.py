"""Throughput, latency and time accounts of recorded requests over one explicit window.

Throughput counts tokens and ends inside the window. Latency, time account and attainment are of the
requests that arrived in it, whenever they ended, so slow ends are not cut off. `figures` of a
million requests takes about 150 MB beside the records, and one second.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from muxcluster.workload.metrics.records import PARTS, Records

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Window:
    """The seconds in [start_s, end_s). Raises ValueError for an empty window."""

    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        if not (np.isfinite([self.start_s, self.end_s]).all() and self.start_s < self.end_s):
            raise ValueError(f"a window from {self.start_s} to {self.end_s} s holds no time")

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s

    def holds(self, times_s: Floats) -> NDArray[np.bool_]:
        """Return which of `times_s` ([n], NaN for never) are inside."""
        return (times_s >= self.start_s) & (times_s < self.end_s)


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in five numbers, NaN where it is empty. Percentiles interpolate."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Throughput:
    """Throughput per second of the window."""

    requests_per_s: float  # finished, with the last token inside
    prompt_tokens_per_s: float  # of requests with the first token inside
    output_tokens_per_s: float  # inside, taken as evenly spaced from first to last


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one set of requests in one window; spreads are of the finished ones."""

    num_requests: int  # that arrived inside
    num_finished: int  # of these
    throughput: Throughput
    ttft_s: Spread  # arrival to first token
    tpot_s: Spread  # per output token after the first, of requests with two or more
    latency_s: Spread  # arrival to last token
    normalised_s: Spread  # latency per output token
    time_s: Mapping[str, float]  # mean seconds by part of the time account


def spread(values: ArrayLike) -> Spread:
    """Return mean and percentiles of the values that are not NaN."""
    found = np.asarray(values, dtype=np.float64).ravel()
    found = found[~np.isnan(found)]
    if not found.size:
        return Spread(0, np.nan, np.nan, np.nan, np.nan)
    p50, p90, p99 = np.percentile(found, (50, 90, 99))
    return Spread(found.size, float(found.mean()), float(p50), float(p90), float(p99))


def arrived(records: Records, window: Window) -> Records:
    """Return the requests that arrived inside the window."""
    return records.where(window.holds(records.rows["arrival_s"]))


def ttft_s(records: Records) -> Floats:
    """Return [n] seconds from arrival to first token; NaN without one."""
    return np.asarray(records.rows["first_token_s"] - records.rows["arrival_s"])


def tpot_s(records: Records) -> Floats:
    """Return [n] seconds per output token after the first; NaN below two tokens."""
    rows = records.rows
    gaps = np.where(rows["output_tokens"] > 1, rows["output_tokens"] - 1.0, np.nan)
    return np.asarray((rows["last_token_s"] - rows["first_token_s"]) / gaps)


def latency_s(records: Records) -> Floats:
    """Return [n] seconds from arrival to last token; NaN without one."""
    return np.asarray(records.rows["last_token_s"] - records.rows["arrival_s"])


def normalised_s(records: Records) -> Floats:
    """Return [n] latency per output token (Orca's and vLLM's normalised latency), or NaN."""
    return np.asarray(latency_s(records) / np.maximum(records.rows["output_tokens"], 1))


def throughput(records: Records, window: Window) -> Throughput:
    """Return throughput inside the window; tokens of unfinished requests count too."""
    rows = records.rows
    num_finished = np.count_nonzero(records.is_finished & window.holds(rows["last_token_s"]))
    prompts = rows["prompt_tokens"][window.holds(rows["first_token_s"])]
    before, after = (_tokens_before(records, t) for t in (window.start_s, window.end_s))
    counts = (num_finished, prompts.sum(), (after - before).sum())
    return Throughput(*(float(count) / float(window.duration_s) for count in counts))


def figures(records: Records, window: Window) -> Figures:
    """Return the figures of all requests together."""
    found = arrived(records, window)
    done = found.where(found.is_finished)
    return Figures(
        len(found),
        len(done),
        throughput(records, window),
        spread(ttft_s(done)),
        spread(tpot_s(done)),
        spread(latency_s(done)),
        spread(normalised_s(done)),
        {part: float(done.rows[part].mean()) if len(done) else np.nan for part in PARTS},
    )


def rate_weighted(values: Mapping[str, float], rates: Mapping[str, float]) -> float:
    """Return Σ rate · value / Σ rate over `rates` (MuxServe's weighted throughput, §4.2).

    MuxServe's notebooks leave out the division by Σ rate. Raises KeyError for a model without a
    value, ValueError where the rates sum to 0.
    """
    total = sum(rates.values())
    if not total > 0:
        raise ValueError("rates sum to nothing")
    return sum(rate * values[model] for model, rate in rates.items()) / total


def _tokens_before(records: Records, time_s: float) -> NDArray[np.int64]:
    """Return [n] output tokens that came before `time_s`."""
    rows = records.rows
    first, last = rows["first_token_s"], rows["last_token_s"]
    num_tokens = rows["output_tokens"].astype(np.int64)
    span = np.where(last > first, last - first, 1.0)
    passed = np.ceil((time_s - first) / span * (num_tokens - 1))
    inside = np.clip(np.nan_to_num(passed, nan=0.0), 1, np.maximum(num_tokens - 1, 1))
    count = np.where(time_s > last, num_tokens, inside)
    return np.asarray(np.where(time_s > first, count, 0), dtype=np.int64)
