"""Thirty models on eight GPUs: requests in time, ours against a model a GPU and time sharing.

examples/thirty-models.yaml, simulated at several rates. "One model a GPU" serves the eight most
popular models, each on a GPU of its own, as a server per model does; requests for the other 22
count as not in time. Time sharing runs all models on the GPUs where our planner places them for it,
one job at a time. In time: at most `SLO_SCALE` times what the request takes alone.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.pop(0)  # the script's folder
sys.path.insert(0, str(ROOT))

from bench.harness import Bench, Claim, make_parser
from muxcluster.config.load import load_config
from muxcluster.config.planner_input import nodes_of, problem
from muxcluster.placement.problem import Problem
from muxcluster.sim.cases.case import Case
from muxcluster.sim.cases.sweep import Cache, sweep
from muxcluster.sim.cases.systems import system_named
from muxcluster.sim.cases.systems_units import asked_by
from muxcluster.sim.demand.loads import poisson_load
from muxcluster.sim.report.report import CaseReport

CONFIG = ROOT / "examples" / "thirty-models.yaml"
# Name in the record: system of `simulate`.
SYSTEMS = {"ours": "muxserve", "one model a GPU": "spatial", "time sharing": "temporal"}
SLO_SCALE = 8.0
SCALES = (0.5, 1.0, 1.5, 2.0, 2.5)
_QUICK_SCALES = (0.5,)
_SIGMA = 1.0  # of the log-normal lengths


@dataclass(frozen=True, slots=True)
class Point:
    """A system at a rate."""

    name: str
    scale: float
    offered: Problem  # all models, at that rate
    served: Problem  # the models that the system has a place for

    def case(self, seconds: float, seed: int, cache: Cache) -> Case:
        """Plan for the models that have a place, and load those."""
        system = system_named(SYSTEMS[self.name])
        plan = cache.plan(system.method, asked_by(system, self.served))
        load = poisson_load(self.served.demands, _SIGMA)
        return Case(
            system,
            plan,
            self.served,
            load,
            rate_scale=self.scale,
            duration_s=seconds,
            seed=seed,
            slo_scale=SLO_SCALE,
        )


def points(base: Problem, scales: Sequence[float]) -> list[Point]:
    """Every system at every rate."""
    found = []
    for scale in scales:
        offered = at_rate(base, scale)
        found += [
            Point(name, scale, offered, most_popular(offered) if system == "spatial" else offered)
            for name, system in SYSTEMS.items()
        ]
    return found


def at_rate(base: Problem, scale: float) -> Problem:
    """The same models at `scale` times their rates."""
    demands = tuple(replace(each, rate=each.rate * scale) for each in base.demands)
    return replace(base, demands=demands)


def most_popular(offered: Problem) -> Problem:
    """As many models as there are GPUs, those with the highest rates."""
    num_gpus = sum(node.num_gpus for node in offered.nodes)
    by_rate = sorted(offered.demands, key=lambda each: each.rate, reverse=True)
    return replace(offered, demands=tuple(by_rate[:num_gpus]))


def row_of(point: Point, reports: Sequence[CaseReport]) -> dict[str, Any]:
    """Rates and shares of all requests, those included that have no model to go to.

    Requests without a place are counted at their expected rate; each report has one seed.
    """
    asked = sum(each.rate for each in point.offered.demands)
    placed = sum(each.rate for each in point.served.demands)
    # Of the requests that have a place, and then of all.
    in_time = [report.total.attainment[f"{SLO_SCALE:g}"] or 0.0 for report in reports]
    return {
        "system": point.name,
        "rate_scale": point.scale,
        "offered_per_s": round(asked, 2),
        "models_placed": len(point.served.demands),
        "requests_per_s": round(fmean(each.total.requests_per_s for each in reports), 2),
        "in_time": round(fmean(in_time) * placed / asked, 4),
        "in_time_of_placed": [round(share, 4) for share in in_time],
        "p99_ttft_s": [report.total.ttft.p99 for report in reports],
        "units": list(reports[0].units),
    }


def claims_of(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Shares in time, ours against the better of the others, at the least and the highest rate;
    and the most requests in time, per second, over theirs."""
    by_system = {name: [row for row in rows if row["system"] == name] for name in SYSTEMS}
    ours, *others = by_system.values()
    most = {
        name: max(row["in_time"] * row["offered_per_s"] for row in mine)
        for name, mine in by_system.items()
    }
    return [
        *(
            Claim(
                f"in_time_at_{words}_rate",
                ours[at]["in_time"],
                "share",
                max(each[at]["in_time"] for each in others),
            )
            for words, at in (("lowest", 0), ("highest", -1))
        ),
        *(
            Claim(
                f"in_time_per_s_over_{name.replace(' ', '_').lower()}",
                most["ours"] / most[name],
                "x",
                1.0,
            )
            for name in SYSTEMS
            if name != "ours"
        ),
    ]


def main() -> None:
    """Simulate, print, publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, help="virtual ones a case (120; 20 with --quick)")
    parser.add_argument("--seeds", type=int, help="repeats (2; 1 with --quick)")
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep results, to go on later")
    bench = Bench(parser)
    options = bench.options
    seconds = options.seconds or (20.0 if options.quick else 120.0)
    num_seeds = options.seeds or (1 if options.quick else 2)
    seeds = range(options.seed, options.seed + num_seeds)
    cache = Cache(options.cache)
    config = load_config(CONFIG)
    asked = points(problem(config, nodes_of(config)), _QUICK_SCALES if options.quick else SCALES)
    cases = [point.case(seconds, seed, cache) for point in asked for seed in seeds]
    reports = iter(sweep(cases, cache, num_processes=options.processes, progress=_progress))
    rows = [row_of(point, [next(reports) for _ in seeds]) for point in asked]
    for row in rows:
        print(
            f"{row['system']:16} {row['offered_per_s']:6.1f} req/s, {row['in_time']:6.1%} in time"
        )
    bench.publish(
        claims_of(rows),
        {f"{row['system']} x {row['rate_scale']}": row["in_time_of_placed"] for row in rows},
        virtual_s=seconds,
        num_seeds=num_seeds,
        slo_scale=SLO_SCALE,
        num_models=len(config.models),
        num_gpus=sum(node.num_gpus for node in asked[0].offered.nodes),
        gpu=asked[0].offered.nodes[0].gpu.name,
        rows=rows,
    )


def _progress(done: int, total: int) -> None:
    print(f"{done} of {total}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
