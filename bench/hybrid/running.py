"""Simulates points under systems, and what of it is said: rows, cuts and claims."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType
from typing import Any

from bench.harness import Claim
from bench.hybrid.setups import OURS, Entry, Point, case_of
from bench.muxserve.judging import interval
from muxcluster.sim.case import Case
from muxcluster.sim.report import CaseReport, ClassesReport
from muxcluster.sim.sweep import Cache, sweep

_CALM = 0.9
"""Share of interactive requests alone whose first token is in time, where they can be served."""
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


def changes(
    cells: Sequence[Cell], other: str, figure: Figure, ours: str = OURS
) -> dict[Point, float]:
    """By point, what ours is less than the other by, as a share of the other."""
    found: Mapping[tuple[Point, str], float] = {
        (cell.point, cell.system): cell.mean(figure) for cell in cells
    }
    return {
        point: 1.0 - value / found[point, other]
        for (point, system), value in found.items()
        if system == ours and found[point, other] > 0
    }


def bearable(cells: Sequence[Cell]) -> list[Cell]:
    """Those of the points whose interactive requests alone keep their targets under `fcfs`.

    Beyond, whatever the batch class gets is taken from interactive requests that are never served.
    """
    calm = {
        (cell.point.setup, cell.point.lengths, cell.point.rate_per_s)
        for cell in cells
        if cell.system == "fcfs" and not cell.point.has_batch
        if cell.mean(ttft_attainment) >= _CALM
    }
    return [
        cell
        for cell in cells
        if (cell.point.setup, cell.point.lengths, cell.point.rate_per_s) in calm
    ]


def claims_of(
    cells: Sequence[Cell], published: Mapping[str, float] = MappingProxyType({})
) -> list[Claim]:
    """Means over the points with a batch load. published: what each is held against."""
    loaded = [cell for cell in cells if cell.point.has_batch]
    mine = [cell for cell in loaded if cell.system == OURS]

    def cut(other: str, figure: Figure) -> float:
        return fmean(changes(loaded, other, figure).values())

    values = {
        "normalised_latency_cut_vs_fcfs": cut("fcfs", normalised_s),
        "normalised_latency_cut_vs_round_robin": cut("round-robin", normalised_s),
        "batch_throughput_loss_vs_fcfs": cut("fcfs", batch_tokens_per_s),
        "batch_throughput_loss_vs_round_robin": cut("round-robin", batch_tokens_per_s),
        "ttft_attainment": fmean(cell.mean(ttft_attainment) for cell in mine),
        "tpot_attainment": fmean(cell.mean(tpot_attainment) for cell in mine),
    }
    return [Claim(name, value, "share", published.get(name)) for name, value in values.items()]
