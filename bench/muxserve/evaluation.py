"""MuxServe's evaluation, mended, on our simulator: ours against spatial and temporal.

19 LLaMA models on 32 A100s, popularity a power law of alpha, every model loaded over one window
(the published runs gave request counts to the wrong models). Ours is our planner's placement with
ADBS; temporal has the same placement, one job at a time, first come first served; spatial gives
each model a mesh by its size, as MuxServe's baseline does. Beside them the ablation of ADBS on one
mesh, at the paper's rates and at twice those, where our engine is as overloaded as theirs was.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.pop(0)  # the script's folder
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.harness import Bench, Claim, make_parser
from bench.muxserve.cases import (
    ALPHAS,
    SCALES,
    SLO_SCALE,
    SYSTEMS,
    Ablation,
    Duration,
    ablations,
    cases_of,
    output_tokens,
    problems,
    scaled,
)
from bench.muxserve.judging import (
    interval,
    least_fair_share,
    rate_weighted,
    requests_per_s,
    share_within_slo,
)
from muxcluster.core.metrics_slo import LEVEL, goodput
from muxcluster.sim.case import Case
from muxcluster.sim.report import CaseReport
from muxcluster.sim.sweep import Cache, sweep
from placement.problem import Problem

_SWEEP = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.625, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Rate scales at which the highest rate within the SLO is looked for."""
_SEARCH_S = 120.0
"""Virtual seconds of each case of that search."""
_OVERLOADS = (1.0, 2.0)
_QUICK_POINTS = ((2.1, 0.5), (2.1, 1.0))


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


def highest_rate(
    search: Search, problem: Problem, system: str, known: Mapping[float, float]
) -> float:
    """The rate scale with 99 % of the requests within the SLO; 0 where the lowest has fewer.

    By bisection: attainment is taken to fall with the rate.
    known: attainment by scales of the search.
    """
    found = dict(known)
    runner = search.runner
    while (scale := _undecided(search.scales, found)) is not None:
        cases = cases_of(system, problem, scale, search.duration, runner.cache)
        found[scale] = fmean(map(share_within_slo, runner.reports(cases)))
    return goodput(list(found), list(found.values())).interpolated


def _undecided(scales: Sequence[float], found: Mapping[float, float]) -> float | None:
    """The middle of the scales above all that passed and below all that failed, if there is one."""
    lowest = max((scale for scale, share in found.items() if share >= LEVEL), default=0.0)
    highest = min((scale for scale, share in found.items() if share < LEVEL), default=inf)
    between = [scale for scale in scales if lowest < scale < highest]
    return between[len(between) // 2] if between else None


def ablation(runner: Runner, asked: Ablation, overload: float, duration: Duration) -> list[Any]:
    """A row a system: rate-weighted requests/s as the paper has them, and who was starved."""
    loaded = replace(asked, problem=scaled(asked.problem, overload))
    rates = {demand.name: demand.rate for demand in loaded.problem.demands}
    outputs = output_tokens(loaded.problem)
    rows = []
    for system, cases in loaded.cases(duration).items():
        reports = runner.reports(cases)
        rows.append(
            {
                "models": asked.name,
                "overload": overload,
                "system": system,
                "rate_weighted_per_s": round(
                    fmean(rate_weighted(each, rates) for each in reports), 2
                ),
                "paper": asked.paper[system],
                "served_share": {
                    name: round(fmean(each.models[name].served_share or 0 for each in reports), 3)
                    for name in rates
                },
                "least_fair_share": least_fair_share(reports, outputs),
            }
        )
    return rows


def _known(cells: Sequence[Cell], alpha: float, system: str) -> dict[float, float]:
    """Attainment by rate scale, of the grid's points."""
    return {
        cell.scale: fmean(map(share_within_slo, cell.reports))
        for cell in cells
        if (cell.alpha, cell.system) == (alpha, system)
    }


def _ratio(cells: Sequence[Cell], other: str) -> tuple[float, float, float]:
    """(highest ratio of our requests/s to the other's, alpha, rate scale)."""
    by_point = {(cell.alpha, cell.scale, cell.system): cell.served for cell in cells}
    return max(
        (served / by_point[alpha, scale, other], alpha, scale)
        for (alpha, scale, system), served in by_point.items()
        if system == "muxserve"
    )


def claims_of(
    cells: Sequence[Cell], highest: Mapping[float, Mapping[str, float]], rows: Sequence[Any]
) -> list[Claim]:
    """What is said in public; the baselines are the paper's."""
    fair = [row["least_fair_share"] for row in rows if row["system"] == "muxserve"]
    fair += [cell.fair_share for cell in cells if cell.system == "muxserve"]
    at_99, over_temporal = (
        [each["muxserve"] / each[other] for each in highest.values() if each[other]]
        for other in ("spatial", "temporal")
    )
    return [
        Claim("throughput_over_spatial_max", _ratio(cells, "spatial")[0], "times", 1.8),
        Claim("throughput_over_temporal_max", _ratio(cells, "temporal")[0], "times", 1.8),
        Claim("requests_at_99_over_spatial_max", max(at_99, default=0.0), "times", 2.9),
        Claim("requests_at_99_over_temporal_max", max(over_temporal, default=0.0), "times", 2.9),
        Claim("worst_fair_share", min(each for each in fair if each is not None), "of fair", 0.9),
    ]


def show(cells: Sequence[Cell], rows: Sequence[Any]) -> None:
    """Two tables."""
    for cell in cells:
        row = cell.row()
        print(
            f"alpha {cell.alpha} x {cell.scale:<5} {cell.system:9} {row['requests_per_s'][0]:7.2f}"
            f" of {row['offered_per_s']:7.2f} req/s, {row['within_slo'][0]:6.1%} within"
            f" {SLO_SCALE:g} x base"
        )
    for row in rows:
        print(
            f"{row['models']} x {row['overload']:g} {row['system']:12}"
            f" {row['rate_weighted_per_s']:6.2f} (paper {row['paper']}) {row['served_share']}"
        )


def main() -> None:
    """Simulate, compare, publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, help="virtual ones a case (4; 2 with --quick)")
    parser.add_argument("--seeds", type=int, help="repeats (2; 1 with --quick)")
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep results, to go on later")
    bench = Bench(parser)
    options = bench.options
    quick = options.quick
    seconds = 60.0 * (options.minutes or (2 if quick else 4))
    num_seeds = options.seeds or (1 if quick else 2)
    duration = Duration(seconds, tuple(range(options.seed, options.seed + num_seeds)))
    runner = Runner(Cache(options.cache), options.processes)
    base = problems(options.data)
    points = _QUICK_POINTS if quick else [(alpha, scale) for alpha in ALPHAS for scale in SCALES]
    cells = grid(runner, base, points, duration)
    single = Duration(min(seconds, _SEARCH_S), duration.seeds[:1])
    scales = tuple(scale for scale in _SWEEP if scale <= points[-1][1] or not quick)
    search = Search(runner, scales, single)
    highest = {
        alpha: {
            system: highest_rate(search, base[alpha], system, _known(cells, alpha, system))
            for system in SYSTEMS
        }
        for alpha in sorted({alpha for alpha, _ in points})
    }
    asked = ablations(options.data)
    rows = [
        row
        for overload in (_OVERLOADS[-1:] if quick else _OVERLOADS)
        for each in asked
        for row in ablation(runner, each, overload, duration)
    ]
    show(cells, rows)
    bench.publish(
        claims_of(cells, highest, rows),
        {
            f"alpha {cell.alpha} x {cell.scale} {cell.system}": [
                round(requests_per_s(each), 3) for each in cell.reports
            ]
            for cell in cells
        },
        virtual_s=seconds,
        num_seeds=num_seeds,
        cells=[cell.row() for cell in cells],
        highest_rate_scale_at_99=highest,
        ablation=rows,
    )


if __name__ == "__main__":
    main()
