"""Simulates the evaluation's grid, its search for the highest rate, and its ablation."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean
from typing import Any

from bench.muxserve.simulated.cases import (
    SYSTEMS,
    Ablation,
    Duration,
    cases_of,
    output_tokens,
    scaled,
)
from bench.muxserve.simulated.judging import (
    interval,
    least_fair_share,
    rate_weighted,
    requests_per_s,
    share_within_slo,
)
from muxcluster.placement.problem import Problem
from muxcluster.sim.cases.case import Case
from muxcluster.sim.cases.sweep import Cache, sweep
from muxcluster.sim.report.report import CaseReport
from muxcluster.workload.metrics.slo import LEVEL, goodput


@dataclass(frozen=True, slots=True)
class Runner:
    """Simulates cases, those that are known already excepted."""

    cache: Cache
    num_processes: int

    def reports(self, cases: Sequence[Case]) -> list[CaseReport]:
        """In the order of the cases."""
        return sweep(cases, self.cache, num_processes=self.num_processes, progress=_progress)


def _progress(done: int, total: int) -> None:
    print(f"{done} of {total}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Cell:
    """A point's reports of one system, a seed each."""

    alpha: float
    scale: float
    system: str
    reports: tuple[CaseReport, ...]
    fair_share: float | None

    @property
    def served(self) -> float:
        """Requests/s, mean of the seeds."""
        return fmean(map(requests_per_s, self.reports))

    def row(self) -> dict[str, Any]:
        """For the record."""
        first = self.reports[0]
        return {
            "alpha": self.alpha,
            "rate_scale": self.scale,
            "system": self.system,
            "offered_per_s": round(fmean(each.total.offered_per_s for each in self.reports), 2),
            "requests_per_s": [
                round(value, 2) for value in interval(map(requests_per_s, self.reports))
            ],
            "within_slo": [
                round(value, 4) for value in interval(map(share_within_slo, self.reports))
            ],
            "p99_ttft_s": first.total.ttft.p99,
            "p99_tpot_s": first.total.tpot.p99,
            "p99_latency_s": first.total.latency.p99,
            "sm_use": round(first.use.sm, 3),
            "sm_idle_beside_waiting": round(
                fmean(each.use.sm_idle_beside_waiting for each in self.reports), 4
            ),
            "kv_use": round(first.use.kv, 3),
            "worst_model": first.worst_model,
            "least_fair_share": self.fair_share,
        }


def grid(
    runner: Runner,
    base: Mapping[float, Problem],
    points: Sequence[tuple[float, float]],
    duration: Duration,
) -> list[Cell]:
    """Every system at every (alpha, scale)."""
    keys = [(alpha, scale, system) for alpha, scale in points for system in SYSTEMS]
    cases = [
        cases_of(system, base[alpha], scale, duration, runner.cache)
        for alpha, scale, system in keys
    ]
    reports = iter(runner.reports([case for each in cases for case in each]))
    found = []
    for alpha, scale, system in keys:
        mine = tuple(next(reports) for _ in duration.seeds)
        fair = least_fair_share(mine, output_tokens(base[alpha]))
        found.append(Cell(alpha, scale, system, mine, fair))
    return found


@dataclass(frozen=True, slots=True)
class Search:
    """Where the highest rate within the SLO is looked for: ascending rate scales."""

    runner: Runner
    scales: tuple[float, ...]
    duration: Duration


def highest_rates(
    search: Search, base: Mapping[float, Problem], cells: Sequence[Cell]
) -> dict[float, dict[str, float]]:
    """By alpha and system, the rate scale with 99 % of the requests within the SLO; 0 where the
    lowest has fewer.

    By bisection, all of them side by side: attainment is taken to fall with the rate. cells: points
    that are known already.
    """
    found = {
        (alpha, system): _known(cells, alpha, system)
        for alpha in sorted({cell.alpha for cell in cells})
        for system in SYSTEMS
    }
    while asked := _all_undecided(search.scales, found):
        cases = [
            cases_of(system, base[alpha], scale, search.duration, search.runner.cache)
            for (alpha, system), scale in asked.items()
        ]
        reports = iter(search.runner.reports([case for each in cases for case in each]))
        for key, scale in asked.items():
            mine = [next(reports) for _ in search.duration.seeds]
            found[key][scale] = fmean(map(share_within_slo, mine))
    highest: dict[float, dict[str, float]] = {}
    for (alpha, system), shares in found.items():
        rate = goodput(list(shares), list(shares.values())).interpolated
        highest.setdefault(alpha, {})[system] = rate
    return highest


Key = tuple[float, str]  # (alpha, system)


def _all_undecided(
    scales: Sequence[float], found: Mapping[Key, Mapping[float, float]]
) -> dict[Key, float]:
    """What to try next, where the end is not reached."""
    tried = {key: _undecided(scales, shares) for key, shares in found.items()}
    return {key: scale for key, scale in tried.items() if scale is not None}


def _undecided(scales: Sequence[float], found: Mapping[float, float]) -> float | None:
    """The middle of the scales above all that passed and below all that failed, if there is one."""
    lowest = max((scale for scale, share in found.items() if share >= LEVEL), default=0.0)
    highest = min((scale for scale, share in found.items() if share < LEVEL), default=inf)
    between = [scale for scale in scales if lowest < scale < highest]
    return between[len(between) // 2] if between else None


def ablation_rows(
    runner: Runner, asked: Sequence[Ablation], overloads: Sequence[float], duration: Duration
) -> list[dict[str, Any]]:
    """A row a system, of every ablation at every overload."""
    points = [
        (overload, replace(each, problem=scaled(each.problem, overload)))
        for overload in overloads
        for each in asked
    ]
    keys = [
        (overload, each, system, cases)
        for overload, each in points
        for system, cases in each.cases(duration).items()
    ]
    reports = iter(runner.reports([case for *_, cases in keys for case in cases]))
    return [
        _row(each, overload, system, [next(reports) for _ in cases])
        for overload, each, system, cases in keys
    ]


def _row(
    asked: Ablation, overload: float, system: str, reports: Sequence[CaseReport]
) -> dict[str, Any]:
    """Rate-weighted requests/s as the paper has them, and who was starved."""
    rates = {demand.name: demand.rate for demand in asked.problem.demands}
    return {
        "models": asked.name,
        "overload": overload,
        "system": system,
        "rate_weighted_per_s": round(fmean(rate_weighted(each, rates) for each in reports), 2),
        "paper": asked.paper[system],
        "served_share": {
            name: round(fmean(each.models[name].served_share or 0 for each in reports), 3)
            for name in rates
        },
        "least_fair_share": least_fair_share(reports, output_tokens(asked.problem)),
    }


def _known(cells: Sequence[Cell], alpha: float, system: str) -> dict[float, float]:
    """Attainment by rate scale, of the grid's points."""
    return {
        cell.scale: fmean(map(share_within_slo, cell.reports))
        for cell in cells
        if (cell.alpha, cell.system) == (alpha, system)
    }
