"""Summary of a workload by model; holds 16 bytes per request, and block ids, while it reads."""

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from muxcluster.workload.arrival import Arrival
from muxcluster.workload.metrics.window import Spread, spread


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """One model's requests."""

    model: str
    num_requests: int
    rate_per_s: float  # from 0 to the workload's last arrival; infinite where all come at once
    gap_cv: float  # coefficient of variation of the gaps between arrivals, NaN below two gaps
    prompt_tokens: Spread
    output_tokens: Spread
    # Share of prompt tokens in leading blocks that an earlier request had: the hit rate of an
    # infinite prefix cache; 0 without block ids.
    seen_share: float


class _Tally:
    """One model's requests so far."""

    def __init__(self) -> None:
        self.prompts: array[int] = array("q")
        self.outputs: array[int] = array("q")
        self.latest_s = math.nan
        self.gap_sum = 0.0
        self.gap_squares = 0.0
        self.seen_tokens = 0
        self.blocks: set[int] = set()

    def add(self, arrival: Arrival) -> None:
        if self.prompts:
            gap = arrival.time_s - self.latest_s
            self.gap_sum += gap
            self.gap_squares += gap * gap
        self.latest_s = arrival.time_s
        self.prompts.append(arrival.prompt_tokens)
        self.outputs.append(arrival.output_tokens)
        self.seen_tokens += self._seen(arrival)

    def _seen(self, arrival: Arrival) -> int:
        """Count tokens seen before. An id implies its whole prefix, so known ids come first."""
        prefix = arrival.prefix
        if prefix is None:
            return 0
        known = 0
        for block in prefix.block_ids:
            if block not in self.blocks:
                break
            known += 1
        self.blocks.update(prefix.block_ids)
        return min(known * prefix.block_tokens, arrival.prompt_tokens)

    def cv(self) -> float:
        gaps = len(self.prompts) - 1
        if gaps < 2 or self.gap_sum == 0.0:
            return math.nan
        mean = self.gap_sum / gaps
        return math.sqrt(max(self.gap_squares / gaps - mean * mean, 0.0)) / mean


def summarise(arrivals: Iterable[Arrival]) -> tuple[ModelSummary, ...]:
    """Return each model's summary, in order of appearance; reads the stream to its end."""
    tallies: dict[str, _Tally] = {}
    end_s = 0.0
    for arrival in arrivals:
        tallies.setdefault(arrival.model, _Tally()).add(arrival)
        end_s = arrival.time_s
    return tuple(_summary(model, tally, end_s) for model, tally in tallies.items())


def table(summaries: Iterable[ModelSummary]) -> str:
    """Return the summaries as a text table; lengths as mean, P50, P90 and P99."""
    head = ("model", "requests", "req/s", "gap cv", "prompt tokens", "output tokens", "shared")
    rows = [head, *(_cells(summary) for summary in summaries)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    return "\n".join(lines)


def _summary(model: str, tally: _Tally, end_s: float) -> ModelSummary:
    count = len(tally.prompts)
    prompts = np.asarray(tally.prompts)
    return ModelSummary(
        model,
        count,
        count / end_s if end_s > 0 else math.inf,
        tally.cv(),
        spread(prompts),
        spread(np.asarray(tally.outputs)),
        tally.seen_tokens / int(prompts.sum()),
    )


def _cells(summary: ModelSummary) -> tuple[str, ...]:
    return (
        summary.model,
        str(summary.num_requests),
        f"{summary.rate_per_s:.3g}",
        f"{summary.gap_cv:.2f}",
        _lengths(summary.prompt_tokens),
        _lengths(summary.output_tokens),
        f"{summary.seen_share:.1%}",
    )


def _lengths(found: Spread) -> str:
    return " ".join(f"{value:.0f}" for value in (found.mean, found.p50, found.p90, found.p99))
