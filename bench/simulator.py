"""Speed of the simulator, and equality of results when it skips calls of the scheduler.

The 19-model, 32-GPU points of planner_points.json are placed by our planner and loaded with Poisson
arrivals, lengths around ShareGPT's; jobs are timed by the published A100 profile. Each point is
simulated twice for the same span of virtual time, on one core: *plain*, with the scheduler asked
after every decode step, and as `simulate` does it, where steps that change no decision are repeated
without it. Speed is virtual seconds per second of CPU time of this process, start of the units
included.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from time import process_time
from typing import Any

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.harness import Bench, Claim, make_parser
from bench.planning.cases import Point, points
from bench.planning.simulator_memory import measure_memory
from muxcluster.placement.planner import place
from muxcluster.sim.core.planned import units_of
from muxcluster.sim.core.simulate import SimResult, simulate
from muxcluster.sim.core.unit import SimUnit
from muxcluster.workload.arrival import Arrival
from muxcluster.workload.generate import Source, generate
from muxcluster.workload.lengths import Independent, Limited
from muxcluster.workload.marginals import LogNormal
from muxcluster.workload.metrics.window import Window, figures
from muxcluster.workload.processes import Poisson

NUM_MODELS = 19
QUICK = ("synth19_a2.1_s0.5",)
STEP_EXACT, DIFFERENCE = 20.0, 0.01  # Targets of issue 5
_SIGMA = 0.8
_PROMPT, _OUTPUT = (LogNormal(math.log(mean) - _SIGMA**2 / 2, _SIGMA) for mean in (161.0, 338.0))
# ShareGPT's means as MuxServe gives them (§4.1).
_LENGTHS = Limited(Independent(_PROMPT, _OUTPUT), 1023, 1024)


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation: virtual seconds per CPU second, and what it found."""

    speed: float
    num_jobs: int
    metrics: dict[str, float]


def arrivals(point: Point, seed: int, end_s: float) -> Iterator[Arrival]:
    """Requests at the point's rates."""
    sources = [Source(each.name, Poisson(each.rate), _LENGTHS) for each in point.problem.demands]
    return generate(sources, seed, end_s)


def run(units: tuple[SimUnit, ...], asked: Iterator[Arrival], end_s: float, *, plain: bool) -> Run:
    """Simulate until `end_s`. Metrics are of the middle: a fifth of the span is warm-up, and who
    came in the last two fifths may not have ended. plain: somebody watches every job."""
    start = process_time()
    result = simulate(units, asked, until_s=end_s, exact=True, on_job=_unseen if plain else None)
    seconds = process_time() - start
    return Run(end_s / seconds, result.num_jobs, metrics(result, end_s))


def _unseen(*_: object) -> None:
    """A watcher of jobs that does nothing with them."""


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
    """Both runs of one point."""
    units = units_of(place(point.problem), point.problem)
    plain = run(units, arrivals(point, seed, end_s), end_s, plain=True)
    quick = run(units, arrivals(point, seed, end_s), end_s, plain=False)
    difference = differences(plain, quick)
    return {
        "point": point.name,
        "requests_per_s": round(sum(each.rate for each in point.problem.demands), 1),
        "num_units": len(units),
        "virtual_s": end_s,
        "plain_x": round(plain.speed, 1),
        "step_exact_x": round(quick.speed, 1),
        "num_jobs": quick.num_jobs,
        "metrics": {name: round(value, 5) for name, value in quick.metrics.items()},
        "difference": difference,
        "worst_difference": max(difference.values()),
    }


def main() -> None:
    """Measure every point, print a table, publish the claims."""
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, help="virtual time (60; 15 with --quick)")
    parser.add_argument("--points", nargs="+", metavar="NAME", help="only these points")
    parser.add_argument(
        "--requests", type=int, metavar="N", help="and the memory that N short requests take"
    )
    bench = Bench(parser)
    options = bench.options
    end_s = options.seconds or (15.0 if options.quick else 60.0)
    wanted = options.points or (QUICK if options.quick else None)
    print(f"{'point':20} {'req/s':>6} {'plain':>7} {'speed':>7} {'jobs':>9} {'diff.':>7}")
    found = []
    for point in points(bench.data()):
        if len(point.problem.demands) != NUM_MODELS or (wanted and point.name not in wanted):
            continue
        row = measure(point, options.seed, end_s)
        found.append(row)
        print(
            f"{row['point']:20} {row['requests_per_s']:6} {row['plain_x']:6}x "
            f"{row['step_exact_x']:6}x {row['num_jobs']:>9} {row['worst_difference']:7.2%}",
            flush=True,
        )
    claims = (
        Claim("step_exact_x_real_time", min(r["step_exact_x"] for r in found), "x", STEP_EXACT),
        Claim("plain_x_real_time", min(r["plain_x"] for r in found), "x"),
        Claim(
            "worst_metric_difference", max(r["worst_difference"] for r in found), "1", DIFFERENCE
        ),
    )
    samples = {name: [row[name] for row in found] for name in ("step_exact_x", "plain_x")}
    bench.publish(claims, samples, points=found, memory=_memory(options.requests, options.seed))


def _memory(num_requests: int | None, seed: int) -> dict[str, Any] | None:
    if num_requests is None:
        return None
    found = measure_memory(num_requests, seed)
    print(
        f"{found['num_requests']:,} requests: {found['bytes_per_request']} bytes each while it "
        f"ran ({found['record_bytes']} of them the record), at most "
        f"{max(size for _, size in found['resident_mb'])} MB in all, {found['cpu_s']} s of CPU time"
    )
    return found


if __name__ == "__main__":
    main()
