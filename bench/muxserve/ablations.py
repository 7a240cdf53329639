"""Contributions of MuxServe's parts, and ChatLMSYS: the paper's remaining headlines, simulated.

Placement: our planner against most free memory first, on 8 GPUs with 4 models and 16 with 7.
Resource manager: SM sharing and the unified KV pool on and off, 4 models on one mesh of 4 GPUs.
Wide units: SM sharing on meshes of 4 GPUs against mixed jobs on the same meshes.
ChatLMSYS: 16 models on 32 GPUs at the released rates, against spatial partitioning (meshes by size
as published, and by load) and temporal multiplexing. All models are loaded over the whole window.
A claim is the highest ratio over the points of its experiment, as "up to" is; all are printed.
See README.md in this folder for what the paper leaves open and how it was filled in.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

sys.path.pop(0)  # the script's folder
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.harness import Bench, make_parser
from bench.muxserve.simulated.ablation_cases import (
    COLOCATED,
    NEITHER,
    Point,
    chatlmsys_points,
    placement_points,
    resource_points,
    wide_points,
)
from bench.muxserve.simulated.cases import SLO_SCALE, Duration
from bench.muxserve.simulated.headlines import HEADLINES, Measured, claims_of
from bench.muxserve.simulated.jobs_picture import draw
from bench.muxserve.simulated.judging import requests_per_s
from bench.muxserve.simulated.running import Runner
from muxcluster.sim.cases.sweep import Cache

_SCALES = (1.0, 2.0, 4.0)
_ALPHAS = (0.7, 1.3, 2.1)
_OVERLOADS = (1.0, 2.0)
_CONDENSATIONS = (500, 1200, 2000)
_SECONDS = 60.0
# A model that is starved there needs a while until its requests miss 8 times their base.
_RESOURCES_SECONDS = 120.0
_QUICK_SECONDS = 20.0


def measured(points: Sequence[Point], runner: Runner) -> list[Measured]:
    """Every system at every point, simulated in one sweep."""
    cases = [case for point in points for each in point.cases.values() for case in each]
    reports = iter(runner.reports(cases))
    return [
        Measured(point.experiment, point.load, system, tuple(next(reports) for _ in cases))
        for point in points
        for system, cases in point.cases.items()
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


def _points(options: Namespace, data: Path, cache: Cache) -> Iterator[Point]:
    """With --quick, one load of each experiment."""
    quick = options.quick
    short, long = (_duration(options, seconds) for seconds in (_SECONDS, _RESOURCES_SECONDS))
    yield from placement_points(data, _SCALES[-1:] if quick else _SCALES, short, cache)
    yield from resource_points(data, _ALPHAS[:1] if quick else _ALPHAS, long)
    yield from wide_points(
        data, _ALPHAS[:1] if quick else _ALPHAS, _OVERLOADS[-1:] if quick else _OVERLOADS, long
    )
    some = _CONDENSATIONS[1:2] if quick else _CONDENSATIONS
    yield from chatlmsys_points(data, some, short, cache)


def _duration(options: Namespace, seconds: float) -> Duration:
    """seconds: of the default size."""
    if options.quick:
        seconds = _QUICK_SECONDS
    if options.minutes is not None:
        seconds = 60.0 * options.minutes
    return Duration(seconds, tuple(range(options.seed, options.seed + options.seeds)))


def _draw(points: Sequence[Point], found: Sequence[Measured], path: Path) -> None:
    """The first point of the resource manager, without its parts and with them."""
    point = next(each for each in points if each.experiment == "resources")
    served = {each.system: each.served for each in found if each.load == point.load}
    titles = {NEITHER: "one job at a time", "muxserve": "SMs shared (muxserve)"}
    cases = {
        f"{title}: {served[system]:.1f} requests/s served": point.cases[system][0]
        for system, title in titles.items()
    }
    sizes = {f"llm-{index}": shape for index, shape in enumerate(COLOCATED)}
    draw(cases, sizes, path)


def main() -> None:
    """Simulate, compare, publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, help="virtual ones a case (1, resources 2)")
    parser.add_argument("--seeds", type=int, default=1, help="repeats")
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep results, to go on later")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw jobs over time, .svg, .png")
    bench = Bench(parser)
    options = bench.options
    runner = Runner(Cache(options.cache), options.processes)
    points = tuple(_points(options, bench.data(), runner.cache))
    found = measured(points, runner)
    show(found)
    if options.plot is not None:
        _draw(points, found, options.plot)
    bench.publish(
        claims_of(found),
        {
            f"{each.experiment} {each.load} {each.system}": [
                round(requests_per_s(report), 3) for report in each.reports
            ]
            for each in found
        },
        num_seeds=options.seeds,
        rows=[each.row() for each in found],
        ratios={
            each.name: {load: round(ratio, 3) for load, ratio in each.ratios(found).items()}
            for each in HEADLINES
        },
    )


if __name__ == "__main__":
    main()
