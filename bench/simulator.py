"""How fast the simulator is, and whether coalesced decode steps change what it finds.

The 19-model, 32-GPU points of planner_points.json are placed by our planner and loaded with Poisson
arrivals, lengths around ShareGPT's; jobs are timed by the published A100 profile. Each point is
simulated step by step and with coalesced steps for the same span of virtual time, on one core.
Speed is virtual seconds per second of CPU time of this process, start of the units included.

Who shares SMs with whom is chaotic: a run whose requests come up to a millisecond later differs
too. The third run of a point is such a one, step-exact; `noise` is its difference from the first.
"""

import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from time import process_time
from typing import Any

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.harness import Bench, Claim, make_parser
from bench.placement_cases import Point, points
from muxcluster.core.metrics import Window, figures
from muxcluster.sim.planned import units_of
from muxcluster.sim.simulate import SimResult, simulate
from muxcluster.sim.unit import SimUnit
from muxcluster.workload.arrival import Arrival
from muxcluster.workload.generate import Source, generate
from muxcluster.workload.lengths import Independent, Limited
from muxcluster.workload.marginals import LogNormal
from muxcluster.workload.processes import Poisson
from placement.planner import place

NUM_MODELS = 19
QUICK = ("synth19_a2.1_s0.5",)
STEP_EXACT, COALESCED, DIFFERENCE = 20.0, 100.0, 0.01
"""Targets of issue 5."""
_SIGMA = 0.8
_PROMPT, _OUTPUT = (LogNormal(math.log(mean) - _SIGMA**2 / 2, _SIGMA) for mean in (161.0, 338.0))
_LENGTHS = Limited(Independent(_PROMPT, _OUTPUT), 1023, 1024)
"""ShareGPT's means as MuxServe gives them (§4.1)."""


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation: virtual seconds per CPU second, and what it found."""

    speed: float
    num_jobs: int
    metrics: dict[str, float]


def arrivals(point: Point, seed: int, end_s: float, jitter_s: float = 0.0) -> Iterator[Arrival]:
    """Requests at the point's rates, each up to `jitter_s` later than the seed says."""
    sources = [Source(each.name, Poisson(each.rate), _LENGTHS) for each in point.problem.demands]
    draw = random.Random(seed)
    last_s = 0.0
    for arrival in generate(sources, seed, end_s):
        last_s = max(last_s, arrival.time_s + jitter_s * draw.random())
        yield replace(arrival, time_s=last_s)


def run(units: tuple[SimUnit, ...], asked: Iterator[Arrival], end_s: float, *, exact: bool) -> Run:
    """Simulate until `end_s`. Metrics are of the middle: a fifth of the span is warm-up, and who
    came in the last two fifths may not have ended."""
    start = process_time()
    result = simulate(units, asked, until_s=end_s, exact=exact)
    seconds = process_time() - start
    return Run(end_s / seconds, result.num_jobs, metrics(result, end_s))


def metrics(result: SimResult, end_s: float) -> dict[str, float]:
    """Throughput, and p50 and p99 of the three latencies."""
    found = figures(result.records, Window(0.2 * end_s, 0.6 * end_s))
    rates = found.throughput
    spreads = {"ttft_s": found.ttft_s, "tpot_s": found.tpot_s, "latency_s": found.latency_s}
    parts = ((f"{n}_{p}", getattr(s, p)) for n, s in spreads.items() for p in ("p50", "p99"))
    return dict(
        chain(
            (("requests_per_s", rates.requests_per_s),),
            (("output_tokens_per_s", rates.output_tokens_per_s),),
            parts,
        )
    )


def differences(first: Run, second: Run) -> dict[str, float]:
    """Relative, by metric."""
    return {
        name: round(abs(second.metrics[name] / value - 1), 5)
        for name, value in first.metrics.items()
    }


def measure(point: Point, seed: int, end_s: float) -> dict[str, Any]:
    """All runs of one point."""
    units = units_of(place(point.problem), point.problem)
    exact = run(units, arrivals(point, seed, end_s), end_s, exact=True)
    coalesced = run(units, arrivals(point, seed, end_s), end_s, exact=False)
    shifted = run(units, arrivals(point, seed, end_s, jitter_s=1e-3), end_s, exact=True)
    difference, noise = differences(exact, coalesced), differences(exact, shifted)
    return {
        "point": point.name,
        "requests_per_s": round(sum(each.rate for each in point.problem.demands), 1),
        "num_units": len(units),
        "virtual_s": end_s,
        "step_exact_x": round(exact.speed, 1),
        "coalesced_x": round(coalesced.speed, 1),
        "step_exact_jobs": exact.num_jobs,
        "coalesced_jobs": coalesced.num_jobs,
        "metrics": {name: round(value, 5) for name, value in exact.metrics.items()},
        "difference": difference,
        "noise": noise,
        "worst_difference": max(difference.values()),
        "worst_noise": max(noise.values()),
    }


def main() -> None:
    """Measure every point, print a table, publish the claims."""
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, help="virtual time (120; 15 with --quick)")
    parser.add_argument("--points", nargs="+", metavar="NAME", help="only these points")
    bench = Bench(parser)
    options = bench.options
    end_s = options.seconds or (15.0 if options.quick else 120.0)
    wanted = options.points or (QUICK if options.quick else None)
    print(f"{'point':20} {'req/s':>6} {'exact':>7} {'coal.':>7} {'jobs':>15} {'diff.':>7}  noise")
    found = []
    for point in points(options.data):
        if len(point.problem.demands) != NUM_MODELS or (wanted and point.name not in wanted):
            continue
        row = measure(point, options.seed, end_s)
        found.append(row)
        jobs = f"{row['step_exact_jobs']}/{row['coalesced_jobs']}"
        print(
            f"{row['point']:20} {row['requests_per_s']:6} {row['step_exact_x']:6}x "
            f"{row['coalesced_x']:6}x {jobs:>15} {row['worst_difference']:7.2%} "
            f"{row['worst_noise']:6.2%}",
            flush=True,
        )
    claims = (
        Claim("step_exact_x_real_time", min(r["step_exact_x"] for r in found), "x", STEP_EXACT),
        Claim("coalesced_x_real_time", min(r["coalesced_x"] for r in found), "x", COALESCED),
        Claim(
            "worst_metric_difference", max(r["worst_difference"] for r in found), "1", DIFFERENCE
        ),
        Claim("worst_noise", max(r["worst_noise"] for r in found), "1"),
    )
    samples = {name: [row[name] for row in found] for name in ("step_exact_x", "coalesced_x")}
    bench.publish(claims, samples, points=found)


if __name__ == "__main__":
    main()
