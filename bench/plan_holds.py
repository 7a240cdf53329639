"""Whether plans hold: what random clusters' plans promise against simulations of them.

Each case is a cluster of 1 to 32 GPUs with 2 to 30 known models, loaded with 0.3 to 1.5 times the
rates at which the planner's fullest unit is just full, and targets for both latencies. Its plan
(greedy) is simulated with Poisson arrivals and log-normal lengths. Where the plan says that all is
served within its targets, it holds if at least 98 % of the requests that came in the window ended
and 95 % within their targets. Where it says that less is served, its requests/s are compared with
those of the simulation; for the objective goodput, which presumes that the rest is turned away,
only so many requests come, and those within their targets count.
"""

import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.harness import Bench, Claim, make_parser
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.memory import DoesNotFit
from muxcluster.placement.plan import Plan
from muxcluster.placement.planner import place
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.review.assess import ModelReport, assess
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.sim.cases.check import check_plan, span_of

NUM_CASES, QUICK_CASES = 100, 10
MOST_MODELS, MOST_GPUS = 30, 32
LEAST_ENDED, LEAST_WITHIN = 0.98, 0.95
HOLDS, CLOSE = 0.95, 0.10  # what is aimed at
_GPUS = ("A100-80GB", "A100-40GB", "H100", "H100-PCIe", "L40S", "A10G", "RTX4090", "H200")
_SHAPES = (
    *("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "llama-3.1-70b", "mistral-7b-v0.3"),
    *("qwen2.5-1.5b", "qwen2.5-7b", "qwen2.5-14b", "qwen2.5-32b", "qwen3-30b-a3b"),
    *("llama-2-7b", "llama-2-13b"),
)
_LENGTHS = ((161, 338), (512, 128), (1024, 256), (256, 64), (2000, 100))  # mean (prompt, output)
_NEARLY_NONE = 1e-6  # requests/s
_ROUNDS = 3  # plans that are made to find the rates at which a cluster is full


@dataclass(frozen=True, slots=True)
class Row:
    """One case: what the plan says, and what the simulation shows."""

    seed: int
    num_gpus: int
    num_models: int
    load: float  # asked over what the planner can serve
    objective: str
    asked: float  # requests/s
    planned: float
    simulated: float
    says_all: bool  # the plan: all is served within its targets
    ended: float
    within: float
    holds: bool | None  # None where the plan does not say that all is served
    error: float | None  # planned / simulated - 1; None where all is served
    lanes: str
    plan_s: float
    simulate_s: float


def main(argv: Sequence[str] | None = None) -> None:
    """Run the bench."""
    parser = make_parser(__doc__)
    parser.add_argument("--cases", type=int, metavar="N", help=f"instead of {NUM_CASES}")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="cases at a time")
    bench = Bench(parser, argv)
    options = bench.options
    count = options.cases or (QUICK_CASES if options.quick else NUM_CASES)
    most_gpus = 4 if options.quick else MOST_GPUS
    rows: list[Row] = []
    seeds = range(1000 * options.seed, 1000 * options.seed + count)
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for row in pool.map(partial(_run, most_gpus=most_gpus), seeds):
            rows.append(row)
            print(*(f"{name}={_short(value)}" for name, value in asdict(row).items()), flush=True)
            bench.save(_claims(rows), {}, cases=[asdict(each) for each in rows])
    samples = {"simulate_s": [row.simulate_s for row in rows]}
    bench.publish(_claims(rows), samples, cases=[asdict(row) for row in rows])


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _run(seed: int, most_gpus: int) -> Row:
    load, problem = case(seed, most_gpus)
    start = time.perf_counter()
    plan = place(problem, time_limit_s=0.0)
    planned_s = time.perf_counter()
    asked = sum(demand.rate for demand in problem.demands)
    is_short = plan.throughput < asked * (1 - 1e-6)
    is_admitting = is_short and problem.objective == "goodput"
    coming = _admitted(problem, plan) if is_admitting else problem
    span = span_of(coming)
    found = check_plan(coming, plan, span, seed=seed)
    simulated_s = time.perf_counter()
    simulated = found.total.served_per_s
    if is_admitting:
        simulated = found.total.within * found.total.num_requests / span.window_s
    says_all = promises_all(problem, plan)
    holds = found.total.ended >= LEAST_ENDED and found.total.within >= LEAST_WITHIN
    return Row(
        seed=seed,
        num_gpus=sum(node.num_gpus for node in problem.nodes),
        num_models=len(problem.demands),
        load=load,
        objective=problem.objective,
        asked=asked,
        planned=plan.throughput,
        simulated=simulated,
        says_all=says_all,
        ended=found.total.ended,
        within=found.total.within,
        holds=holds if says_all else None,
        error=plan.throughput / simulated - 1 if is_short else None,
        lanes=",".join(
            f"{unit.execution.lane}:{unit.tp}x{len(unit.models)}"
            for unit in plan.units
            if unit.execution
        ),
        plan_s=planned_s - start,
        simulate_s=simulated_s - planned_s,
    )


def _admitted(problem: Problem, plan: Plan) -> Problem:
    """Return the problem with the rates that the plan serves."""
    served = dict.fromkeys((demand.name for demand in problem.demands), _NEARLY_NONE)
    for model in (model for unit in plan.units for model in unit.models):
        served[model.name] += model.throughput
    demands = tuple(replace(each, rate=served[each.name]) for each in problem.demands)
    return replace(problem, demands=demands)


def promises_all(problem: Problem, plan: Plan) -> bool:
    """Return whether the plan says that all is served within the targets."""
    reports = [model for unit in assess(problem, plan) for model in unit.models]
    return all(map(_is_served, reports))


def _is_served(report: ModelReport) -> bool:
    margins = [each for each in (report.ttft_margin, report.tpot_margin) if each is not None]
    return report.share >= 1 - 1e-9 and all(margin >= 0 for margin in margins)


def case(seed: int, most_gpus: int = MOST_GPUS) -> tuple[float, Problem]:
    """Return a random (load, problem); draws again until the models fit."""
    draw = random.Random(seed)
    while True:
        load, problem = draw.uniform(0.3, 1.5), _drawn(draw, most_gpus)
        try:
            return load, _scaled(_filling(problem), load)
        except DoesNotFit:
            continue


def _filling(problem: Problem) -> Problem:
    """Return the problem at the rates that fill its cluster, as the planner sees it."""
    for _ in range(_ROUNDS):
        plan = place(problem, time_limit_s=0.0)
        fullest = max(report.load for report in assess(problem, plan))
        problem = _scaled(problem, 1 / fullest)
    return problem


def _drawn(draw: random.Random, most_gpus: int) -> Problem:
    """Return a problem with a request/s a GPU."""
    # half of the clusters have at most two GPUs, a fifth more than nine
    num_gpus = round(math.exp(draw.random() ** 2 * math.log(most_gpus + 0.49)))
    nodes = tuple(_nodes(draw, num_gpus))
    num_models = round(math.exp(draw.uniform(math.log(2), math.log(min(30, 4 * num_gpus + 1)))))
    alpha = draw.uniform(0.3, 1.8)
    weights = [(rank + 1) ** -alpha for rank in range(num_models)]
    demands = []
    for rank, weight in enumerate(weights):
        prompt, output = draw.choice(_LENGTHS)
        demands.append(
            Demand(
                name=f"m{rank:02}",
                shape=SHAPES[draw.choice(_SHAPES)],
                rate=num_gpus * weight / sum(weights),
                prompt_tokens=prompt,
                output_tokens=output,
                max_model_len=8192,
                max_seqs=draw.choice((64, 64, 128, 256)),
                ttft_s=draw.choice((0.5, 1.0, 2.0)),
                tpot_s=draw.choice((0.05, 0.1, 0.2)),
            )
        )
    objective = draw.choice(("throughput", "goodput"))
    return Problem(
        tuple(demands), nodes, objective="goodput" if objective == "goodput" else "throughput"
    )


def _nodes(draw: random.Random, num_gpus: int) -> Iterator[Node]:
    """Yield nodes of at most eight GPUs of one or two kinds."""
    kinds = draw.sample(_GPUS, draw.choice((1, 1, 2)))
    number = 0
    while num_gpus > 0:
        size = min(num_gpus, 8)
        yield Node(f"n{number}", size, GPUS[kinds[number % len(kinds)]])
        num_gpus -= size
        number += 1


def _scaled(problem: Problem, factor: float) -> Problem:
    demands = tuple(replace(each, rate=each.rate * factor) for each in problem.demands)
    return replace(problem, demands=demands)


def _claims(rows: Sequence[Row]) -> list[Claim]:
    promised = [row for row in rows if row.holds is not None]
    errors = [abs(row.error) for row in rows if row.error is not None]
    claims = []
    if promised:
        share = sum(bool(row.holds) for row in promised) / len(promised)
        claims.append(Claim("plans_that_hold", share, "share", HOLDS))
        claims.append(Claim("plans_that_promise_all", len(promised), "cases"))
    if errors:
        claims.append(Claim("served_median_abs_error", median(errors), "share", CLOSE))
        claims.append(Claim("plans_that_say_less", len(errors), "cases"))
    return claims


if __name__ == "__main__":
    main()
