"""Simulates points under systems; a row of the record for each."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from bench.hybrid.simulated.setups import Entry, Point, case_of
from bench.muxserve.simulated.judging import interval
from muxcluster.sim.cases.case import Case
from muxcluster.sim.cases.sweep import Cache, sweep
from muxcluster.sim.report.report import CaseReport, ClassesReport

Figure = Callable[[ClassesReport], float]
Build = Callable[[Point, Entry, int], Case]


def normalised_s(classes: ClassesReport) -> float:
    """Mean latency per output token of interactive requests, from their arrival."""
    return classes.interactive.normalised.mean or 0.0


def batch_tokens_per_s(classes: ClassesReport) -> float:
    """Prompt and output tokens of batch requests."""
    return classes.batch.tokens_per_s


def ttft_attainment(classes: ClassesReport) -> float:
    """Share of interactive requests with their first token in time."""
    return classes.interactive.ttft_attainment or 0.0


def tpot_attainment(classes: ClassesReport) -> float:
    """Share of interactive requests whose mean time per token is within the target."""
    return classes.interactive.tpot_attainment or 0.0


@dataclass(frozen=True, slots=True)
class Cell:
    """A point under a system, a report a seed."""

    point: Point
    system: str
    reports: tuple[CaseReport, ...]

    def mean(self, figure: Figure) -> float:
        """Over the seeds."""
        return fmean(map(figure, self.classes()))

    def classes(self) -> list[ClassesReport]:
        """A seed each."""
        return [each.classes for each in self.reports if each.classes is not None]

    def row(self) -> dict[str, Any]:
        """For the record; pairs are mean and half of the 95 % interval over the seeds."""
        found, point = self.classes(), self.point
        mine, batch = [each.interactive for each in found], [each.batch for each in found]
        sharing = [each.sharing.model_dump() for each in found]
        return {
            "setup": point.setup,
            "lengths": point.lengths,
            "rate_per_s": point.rate_per_s,
            "virtual_s": point.seconds,
            "batch": point.has_batch,
            "system": self.system,
            "normalised_s": _interval(map(normalised_s, found), 4),
            "normalised_p99_s": _interval((each.normalised.p99 or 0.0 for each in mine), 3),
            "ttft_p50_s": _interval((each.ttft.p50 or 0.0 for each in mine), 3),
            "ttft_p99_s": _interval((each.ttft.p99 or 0.0 for each in mine), 3),
            "tpot_p50_s": _interval((each.tpot.p50 or 0.0 for each in mine), 4),
            "tpot_p99_s": _interval((each.tpot.p99 or 0.0 for each in mine), 4),
            "ttft_attainment": _interval(map(ttft_attainment, found), 4),
            "tpot_attainment": _interval(map(tpot_attainment, found), 4),
            "attainment": _interval((each.attainment or 0.0 for each in mine), 4),
            "interactive_per_s": _interval((each.requests_per_s for each in mine), 3),
            "batch_tokens_per_s": _interval(map(batch_tokens_per_s, found), 1),
            "batch_output_tokens_per_s": _interval((e.output_tokens_per_s for e in batch), 1),
            "batch_requests_per_s": _interval((each.requests_per_s for each in batch), 3),
            "sm_use": round(fmean(each.use.sm for each in self.reports), 3),
            "kv_use": round(fmean(each.use.kv for each in self.reports), 3),
            **{name: round(fmean(each[name] for each in sharing), 1) for name in sharing[0]},
        }


def _interval(values: Any, digits: int) -> list[float]:
    return [round(value, digits) for value in interval(values)]


@dataclass(frozen=True, slots=True)
class Runner:
    """Simulates cases, those that are known already excepted."""

    cache: Cache
    num_processes: int
    seeds: tuple[int, ...]

    def cells(
        self, points: Sequence[Point], entries: Sequence[Entry], build: Build = case_of
    ) -> list[Cell]:
        """Every point under every system. build: what a point means."""
        keys = [(point, entry) for point in points for entry in entries]
        cases = [build(point, entry, seed) for point, entry in keys for seed in self.seeds]
        reports = iter(
            sweep(cases, self.cache, num_processes=self.num_processes, progress=_progress)
        )
        return [
            Cell(point, entry.name, tuple(next(reports) for _ in self.seeds))
            for point, entry in keys
        ]


def _progress(done: int, total: int) -> None:
    if done % 10 == 0 or done == total:
        print(f"{done} of {total}", file=sys.stderr, flush=True)
