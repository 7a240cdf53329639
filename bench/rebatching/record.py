"""The record of bench/dense.py: an entry per case and method, the curves and the claims."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.harness import Claim
from bench.rebatching.trace import Trace, Work, thinned

STATIC, DECOUPLED, BATON, BATON_PD = "static", "P&D only", "BATON", "BATON with P&D"
SCALED, PACKED = "BATON with P&D, scaled", "BATON with P&D, packed"
# Methods that are whole units, by the backend of their model.
UNITS: Mapping[str, str] = {"unit, dense backend": "dense", "unit, paged backend": "paged"}

# Over the static batch, by batch size; both ends of its table 2.
PAPER_SPEEDUP: Mapping[int, float] = {2: 1.94, 10: 1.31}

LEAST_PAPER_SPEEDUP = 1.31

# Seconds of 120 queries of mixed lengths, by batch size: its table 1.
PAPER_S: Mapping[int, Mapping[str, float]] = {
    4: {STATIC: 21901, DECOUPLED: 21781, BATON: 20549, BATON_PD: 11771},
    8: {STATIC: 6619, DECOUPLED: 6577, BATON: 3424, BATON_PD: 2654},
}


@dataclass(frozen=True, slots=True)
class Done:
    """One run of a method."""

    trace: Trace
    cpu_s: float  # of all its processes
    work: Work | None  # None for a unit, whose forwards are not watched
    num_saved: int = 0  # queries saved to host memory

    @property
    def seconds(self) -> float:
        """Until the last query was complete."""
        return self.trace.ended_s[-1]


@dataclass(frozen=True, slots=True)
class Measured:
    """One case: its runs by method, a list over the rounds."""

    batch: int
    is_mixed: bool  # of the mixed lengths
    runs: dict[str, list[Done]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As the claims have it."""
        return f"{self.batch}_long" if self.is_mixed else str(self.batch)

    def seconds(self, method: str) -> float:
        """The median run."""
        return median(run.seconds for run in self.runs[method])


def rows_of(measured: Measured) -> Iterator[dict[str, Any]]:
    """An entry a method."""
    expected = measured.runs[STATIC][0].trace.tokens
    for method, runs in measured.runs.items():
        trace, work, seconds = runs[0].trace, runs[0].work, measured.seconds(method)
        row = {
            "case": measured.name,
            "method": method,
            "seconds": round(seconds, 2),
            "cpu_s": round(median(run.cpu_s for run in runs), 2),
            "speedup": round(measured.seconds(STATIC) / seconds, 3),
            "answers_equal_to_static": sum(map(list.__eq__, trace.tokens, expected)),
        }
        if measured.is_mixed and method in PAPER_S.get(measured.batch, {}):
            paper = PAPER_S[measured.batch]
            row["paper_speedup"] = round(paper[STATIC] / paper[method], 3)
        if work is not None:
            row |= {
                "forwards": work.forwards,
                "computed_tokens": work.computed_tokens,
                "read_slots": work.read_slots,
                "peak_kv_mb": round(trace.peak_bytes / 1e6, 2),
                "mean_kv_mb": round(trace.mean_bytes / 1e6, 2),
                "saved_to_host": runs[0].num_saved,
            }
        yield row


def curves_of(measured: Measured) -> dict[str, Any]:
    """By method: when queries were complete, and the cache's memory as (seconds, MB)."""
    return {
        method: {
            "ended_s": [round(each, 3) for each in runs[0].trace.ended_s],
            "kv_mb": [(round(at, 3), held / 1e6) for at, held in thinned(runs[0].trace.memory)],
        }
        for method, runs in measured.runs.items()
    }


def claims_of(found: Sequence[Measured]) -> Iterator[Claim]:
    """BATON with P&D against the static batch of the same run."""
    for each in found:
        over = each.seconds(STATIC) / each.seconds(BATON_PD)
        if not each.is_mixed:
            paper = PAPER_SPEEDUP.get(each.batch, LEAST_PAPER_SPEEDUP)
            yield Claim(f"speedup_over_static_batch_{each.name}", round(over, 3), "x", paper)
            continue
        seconds = PAPER_S[each.batch]
        cut = 1 - seconds[BATON_PD] / seconds[STATIC]
        name = f"time_cut_over_static_batch_{each.name}"
        yield Claim(name, round(1 - 1 / over, 3), "share", round(cut, 3))
