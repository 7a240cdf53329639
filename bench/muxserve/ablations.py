"""What each of MuxServe's parts carries, and ChatLMSYS: the paper's remaining headlines, simulated.

Placement: our planner against most free memory first, on 8 GPUs with 4 models and 16 with 7.
Resource manager: SM sharing and the unified KV pool on and off, 4 models on one mesh of 4 GPUs.
ChatLMSYS: 16 models on 32 GPUs at the released rates, against spatial partitioning (meshes by size
as published, and by load) and temporal multiplexing. All models are loaded over the whole window.
A claim is the highest ratio over the points of its experiment, as "up to" is; all are printed.
See README.md in this folder for what the paper leaves open and how it was filled in.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.pop(0)  # the script's folder
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.harness import Bench, Claim, make_parser
from bench.muxserve.ablation_cases import (
    EVEN,
    FIXED,
    GREEDY,
    NEITHER,
    Point,
    chatlmsys_points,
    placement_points,
    resource_points,
)
from bench.muxserve.cases import SLO_SCALE, Duration
from bench.muxserve.judging import interval, requests_per_s, share_within_slo
from bench.muxserve.running import Runner
from muxcluster.sim.report import CaseReport
from muxcluster.sim.sweep import Cache

_SCALES = (1.0, 2.0, 4.0)
_ALPHAS = (0.7, 1.3, 2.1)
_CONDENSATIONS = (500, 1200, 2000)
_SECONDS, _QUICK_SECONDS = 90.0, 20.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A system at a point: a report a seed."""

    experiment: str
    load: str
    system: str
    reports: tuple[CaseReport, ...]

    @property
    def served(self) -> float:
        """Requests/s, mean of the seeds."""
        return fmean(map(requests_per_s, self.reports))

    @property
    def attained(self) -> float:
        """Share of the requests within the SLO, mean of the seeds."""
        return fmean(map(share_within_slo, self.reports))

    def row(self) -> dict[str, Any]:
        """For the record."""
        models = self.reports[0].models
        return {
            "experiment": self.experiment,
            "load": self.load,
            "system": self.system,
            "offered_per_s": round(fmean(each.total.offered_per_s for each in self.reports), 2),
            "requests_per_s": _rounded(interval(map(requests_per_s, self.reports)), 2),
            "tokens_per_s": round(fmean(each.total.tokens_per_s for each in self.reports), 1),
            "within_slo": _rounded(interval(map(share_within_slo, self.reports)), 4),
            "sm_use": round(fmean(each.use.sm for each in self.reports), 3),
            "kv_use": round(fmean(each.use.kv for each in self.reports), 3),
            "served_share": {
                name: round(fmean(each.models[name].served_share or 0 for each in self.reports), 3)
                for name in models
            },
            "units": self.reports[0].units,
        }


def _rounded(values: Sequence[float], digits: int) -> list[float]:
    return [round(value, digits) for value in values]


@dataclass(frozen=True, slots=True)
class Headline:
    """One of the paper's ratios. figure: "served" or "attained". load: how its points begin."""

    name: str
    experiment: str
    ours: str
    other: str
    paper: float | None
    figure: str = "served"
    load: str = ""

    def ratios(self, found: Sequence[Measured]) -> dict[str, float]:
        """By load, those where the other served anything."""
        figures = {
            (each.load, each.system): float(getattr(each, self.figure))
            for each in found
            if each.experiment == self.experiment and each.load.startswith(self.load)
        }
        return {
            load: value / figures[load, self.other]
            for (load, system), value in figures.items()
            if system == self.ours and figures[load, self.other] > 0
        }


HEADLINES = (
    Headline("placement_8_gpus_max", "placement", "muxserve", GREEDY, 1.3, load="8 GPUs"),
    Headline("placement_16_gpus_max", "placement", "muxserve", GREEDY, 1.3, load="16 GPUs"),
    Headline("sm_sharing_max", "resources", FIXED, NEITHER, 1.7),
    Headline("unified_kv_max", "resources", "muxserve", FIXED, 1.2),
    Headline("unified_kv_slo_max", "resources", "muxserve", FIXED, 3.6, "attained"),
    Headline(
        "unified_kv_unknown_popularity_max", "resources", EVEN + "muxserve", EVEN + FIXED, 1.2
    ),
    Headline(
        "unified_kv_unknown_popularity_slo_max",
        "resources",
        EVEN + "muxserve",
        EVEN + FIXED,
        3.6,
        "attained",
    ),
    Headline("chatlmsys_over_spatial_max", "chatlmsys", "muxserve", "spatial", 1.38),
    Headline("chatlmsys_over_temporal_max", "chatlmsys", "muxserve", "temporal", 1.46),
    Headline("chatlmsys_over_spatial_by_load_max", "chatlmsys", "muxserve", "spatial-load", None),
)


def measured(points: Sequence[Point], runner: Runner) -> list[Measured]:
    """Every system at every point, simulated in one sweep."""
    cases = [case for point in points for each in point.cases.values() for case in each]
    reports = iter(runner.reports(cases))
    return [
        Measured(point.experiment, point.load, system, tuple(next(reports) for _ in cases))
        for point in points
        for system, cases in point.cases.items()
    ]


def claims_of(found: Sequence[Measured]) -> list[Claim]:
    """The highest ratio of each headline; its baseline is the paper's."""
    return [
        Claim(each.name, max(each.ratios(found).values(), default=0.0), "times", each.paper)
        for each in HEADLINES
    ]


def show(found: Sequence[Measured]) -> None:
    """A line a system and point, then the ratios of each headline."""
    for each in found:
        offered = fmean(report.total.offered_per_s for report in each.reports)
        print(
            f"{each.experiment:9} {each.load:22} {each.system:32} {each.served:7.2f} of"
            f" {offered:7.2f} req/s, {each.attained:6.1%} within {SLO_SCALE:g} x base"
        )
    for headline in HEADLINES:
        paper = "-" if headline.paper is None else f"{headline.paper:g}"
        ratios = (f"{load}: {ratio:.2f}" for load, ratio in headline.ratios(found).items())
        print(f"{headline.name} (paper {paper}): {', '.join(ratios)}")


def _points(data: Path, duration: Duration, cache: Cache, *, quick: bool) -> Iterator[Point]:
    """With quick, one load of each experiment."""
    yield from placement_points(data, _SCALES[-1:] if quick else _SCALES, duration, cache)
    yield from resource_points(data, _ALPHAS[:1] if quick else _ALPHAS, duration)
    some = _CONDENSATIONS[1:2] if quick else _CONDENSATIONS
    yield from chatlmsys_points(data, some, duration, cache)


def main() -> None:
    """Simulate, compare, publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, help="virtual ones a case (1.5; 1/3 with --quick)")
    parser.add_argument("--seeds", type=int, default=1, help="repeats")
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep results, to go on later")
    bench = Bench(parser)
    options = bench.options
    seconds = _QUICK_SECONDS if options.quick else _SECONDS
    if options.minutes is not None:
        seconds = 60.0 * options.minutes
    duration = Duration(seconds, tuple(range(options.seed, options.seed + options.seeds)))
    runner = Runner(Cache(options.cache), options.processes)
    points = tuple(_points(options.data, duration, runner.cache, quick=options.quick))
    found = measured(points, runner)
    show(found)
    bench.publish(
        claims_of(found),
        {
            f"{each.experiment} {each.load} {each.system}": [
                round(requests_per_s(report), 3) for report in each.reports
            ]
            for each in found
        },
        virtual_s=seconds,
        num_seeds=options.seeds,
        rows=[each.row() for each in found],
        ratios={
            each.name: {load: round(ratio, 3) for load, ratio in each.ratios(found).items()}
            for each in HEADLINES
        },
    )


if __name__ == "__main__":
    main()
