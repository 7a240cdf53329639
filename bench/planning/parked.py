"""Thirty models on few H100s: the load, how systems lay it out, and what the simulator makes of it.

Parts of bench/residency.py.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.planning.given import given_models, given_plan
from bench.traces.muxserve import (
    CHATLMSYS_OUTPUT_TOKENS,
    CHATLMSYS_PROMPT_TOKENS,
    read_arena_rates,
)
from bench.traces.servegen import WINDOW_S, read_total_rates
from muxcluster.core.residency import Residency
from muxcluster.core.unitspec import SchedulerSpec, UnitSpec
from muxcluster.placement.execution import Execution, UnitPolicy, executions
from muxcluster.placement.hardware import GIB, GPUS
from muxcluster.placement.memory import (
    DoesNotFit,
    activation_bytes,
    block_bytes,
    kv_blocks,
    resident_bytes,
    usable_bytes,
    weight_bytes,
)
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.planner import place
from muxcluster.placement.problem import Demand, Limits, Node, Problem
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.sim.core.planned import units_of
from muxcluster.sim.core.simulate import SimResult, simulate
from muxcluster.sim.core.unit import SimUnit
from muxcluster.sim.report.slo import base_latencies, base_s
from muxcluster.workload.arrival import Arrival
from muxcluster.workload.metrics.slo import attainment_at_scales
from muxcluster.workload.seeds import rng_for

NUM_MODELS = 30
WAKE_S_PER_GIB = 0.047
SLO_SCALE = 8.0
GPU = GPUS["H100"]
_SIGMA = 1.0  # of the log-normal lengths
_LONGEST, _CONTEXT = 512, 1024
_ROOM = 0.9  # of a GPU's memory for weights; KV has the rest, enough for some eight sequences
_LARGE_PART = 0.5  # of a GPU's memory: a model with more leaves little to others
_POLICY = UnitPolicy(SchedulerSpec(lane="mixed", packing="priority"))
_LIMITS = Limits()
_WINDOWS_A_DAY = round(86_400 / WINDOW_S)
_SIZES = {3: "llama-3.2-3b", 6: "llama-7b", 7: "llama-7b", 12: "llama-13b", 13: "llama-13b"}
_LARGE = "llama-30b"  # from 30B on
_WAKES = {"ours": "deadline", "planned": "deadline", "foresight": "foresight", "swap": "swap"}
# Part of the mean length that a tenth of the requests is shorter than: what these may take is the
# target for first tokens that the planner is told.
_SHORT = 0.17

# The load


def demands_of(data: Path, load: float) -> tuple[Demand, ...]:
    """The arena's models and what continues them, by falling rate, at `load` times their rates."""
    rates = read_arena_rates(data / "muxserve" / "lmsys_arena_model_rates_125days.csv")
    named = sorted(rates.items(), key=lambda each: -each[1])
    ranks = np.arange(len(named))
    slope, start = np.polyfit(ranks, np.log([rate for _, rate in named]), 1)
    named += [
        (f"more-{rank}-7b", float(np.exp(start + slope * rank)))
        for rank in range(len(named), NUM_MODELS)
    ]
    return tuple(
        Demand(
            name,
            SHAPES[_shape(name)],
            rate * load,
            CHATLMSYS_PROMPT_TOKENS,
            CHATLMSYS_OUTPUT_TOKENS,
            _CONTEXT,
            64,
        )
        for name, rate in named
    )


def _shape(name: str) -> str:
    found = re.search(r"(\d+)b", name.lower())
    size = int(found[1]) if found else 13
    return _SIZES.get(size, _LARGE if size >= 30 else "llama-13b")


def day_of(data: Path) -> np.ndarray:
    """The first day of ServeGen's m-small, relative to its mean, a value a window."""
    rates = read_total_rates(data / "servegen" / "total_rate_600s.csv")["m-small"].rates
    day = np.array(rates[:_WINDOWS_A_DAY])
    return day / day.mean()


def arrivals_of(
    demands: Sequence[Demand], day: np.ndarray, seconds: float, seed: int
) -> list[Arrival]:
    """Poisson arrivals at rates that follow the day."""
    share = np.concatenate(([0.0], np.cumsum(day) / day.sum()))
    places = np.linspace(0.0, seconds, len(share))
    found: list[Arrival] = []
    for demand in demands:
        rng = rng_for(seed, "residency", demand.name)
        count = rng.poisson(demand.rate * seconds)
        times = np.sort(np.interp(rng.random(count), share, places))
        found += _arrivals(demand, times, rng)
    return sorted(found, key=lambda each: (each.time_s, each.request_id))


def with_timers(
    demands: Sequence[Demand], coming: Sequence[Arrival], seconds: float, seed: int
) -> list[Arrival]:
    """The same, but that every second model is asked by a timer alone, at its mean rate.

    Its gaps are a hundredth longer or shorter at random.
    """
    timed = {demand.name: demand for demand in demands[1::2]}
    found = [each for each in coming if each.model not in timed]
    for demand in timed.values():
        rng = rng_for(seed, "timers", demand.name)
        period_s = 1 / demand.rate
        due_s = np.arange(rng.random() * period_s, seconds, period_s)
        times = np.sort(due_s + period_s * rng.uniform(-0.01, 0.01, len(due_s)))
        found += _arrivals(demand, np.clip(times, 0.0, seconds), rng)
    return sorted(found, key=lambda each: (each.time_s, each.request_id))


def _arrivals(demand: Demand, times: np.ndarray, rng: np.random.Generator) -> Iterator[Arrival]:
    lengths = [
        np.clip(rng.lognormal(np.log(mean) - _SIGMA**2 / 2, _SIGMA, len(times)), 1, _LONGEST)
        for mean in (demand.prompt_tokens, demand.output_tokens)
    ]
    for index, (at, prompt, output) in enumerate(zip(times, *lengths, strict=True)):
        name = f"{demand.name}/{index}"
        yield Arrival(float(at), name, demand.name, int(prompt), int(output))


# Layouts


@dataclass(frozen=True, slots=True)
class Layout:
    """A unit for each GPU, and its models."""

    kind: str
    places: tuple[tuple[Demand, ...], ...]


def layout_of(system: str, demands: Sequence[Demand], num_gpus: int) -> Layout:
    """How a system uses so many GPUs: ours has models on many of them, the others each on one."""
    if system == "static":
        return Layout("resident", static_places(demands, num_gpus))
    if system == "swap":
        return Layout("apart", shared_places(demands, num_gpus))
    return Layout("pooled", pooled_places(demands, num_gpus))


def static_places(demands: Sequence[Demand], num_gpus: int) -> tuple[tuple[Demand, ...], ...]:
    """Models by GPU, all resident: those that serve the highest rate of the ways tried.

    By popularity, each that still has a place; or as many of the most popular ones as have a place
    if the largest are placed first. Each goes to the GPU with the least work of those with memory
    for it, or to the first one.
    """
    ways = [_packed(demands, num_gpus, is_even=is_even) for is_even in (True, False)]
    for count in range(len(demands), 0, -1):
        by_size = sorted(demands[:count], key=weight_bytes, reverse=True)
        found = [_packed(by_size, num_gpus, is_even=is_even) for is_even in (True, False)]
        whole = [way for way in found if sum(map(len, way)) == count]
        if whole:
            ways = [*whole, *ways]  # of equals, the first one
            break
    return max(ways, key=lambda way: sum(each.rate for place in way for each in place))


def _packed(
    demands: Sequence[Demand], num_gpus: int, *, is_even: bool
) -> tuple[tuple[Demand, ...], ...]:
    """Those of `demands` that have a place when they are placed in that order."""
    places: list[list[Demand]] = [[] for _ in range(num_gpus)]
    for demand in demands:
        order = sorted(places, key=lambda each: sum(map(_work, each))) if is_even else places
        place = next((each for each in order if _fits([*each, demand])), None)
        if place is not None:
            place.append(demand)
    return tuple(map(tuple, filter(None, places)))


def shared_places(demands: Sequence[Demand], num_gpus: int) -> tuple[tuple[Demand, ...], ...]:
    """Models by GPU, each where there is least work so far; the large ones apart."""
    places: list[list[Demand]] = [[] for _ in range(num_gpus)]
    large, small, num_large = _large_apart(demands, num_gpus)
    for group, mine in ((large, places[:num_large]), (small, places[num_large:])):
        for demand in sorted(group, key=lambda each: -_work(each)):
            min(mine, key=lambda each: sum(map(_work, each))).append(demand)
    return tuple(map(tuple, filter(None, places)))


def pooled_places(demands: Sequence[Demand], num_gpus: int) -> tuple[tuple[Demand, ...], ...]:
    """Each model on all GPUs, but the large ones apart."""
    large, small, num_large = _large_apart(demands, num_gpus)
    return (tuple(large),) * num_large + (tuple(small),) * (num_gpus - num_large)


def _large_apart(
    demands: Sequence[Demand], num_gpus: int
) -> tuple[list[Demand], list[Demand], int]:
    """The models that leave little memory to others, the rest, and how many GPUs the former have:
    as many as they take of the work. All are small where there is one GPU."""
    large = [each for each in demands if weight_bytes(each) > _LARGE_PART * _usable()]
    if num_gpus == 1 or not large:
        return [], list(demands), 0
    share = sum(map(_work, large)) / sum(map(_work, demands))
    num_large = min(num_gpus - 1, max(1, round(num_gpus * share)))
    return large, [each for each in demands if each not in large], num_large


def _work(demand: Demand) -> float:
    return demand.rate * demand.shape.num_params


def _usable() -> int:
    return usable_bytes(GPU, 1, _execution())


def _execution(num_models: int = NUM_MODELS) -> Execution:
    return executions(GPU, 1, num_models, _POLICY)[0]


def _fits(demands: Sequence[Demand]) -> bool:
    try:
        kv_blocks(GPU, 1, demands, _LIMITS, _execution(len(demands)))
    except DoesNotFit:
        return False
    return True


def planned_by_itself(demands: Sequence[Demand], num_gpus: int) -> tuple[Problem, Plan]:
    """The plan that the planner makes of models that may all be parked, and its input.

    It is asked for most requests in time. A wake takes 0.1 s more there.
    """
    gpu = replace(GPU, host_link=GIB / WAKE_S_PER_GIB)
    bases = base_latencies(Problem(tuple(demands), (Node("alone", 1, GPU),)))
    asked = []
    for each in demands:
        lengths = np.array([[each.prompt_tokens], [each.output_tokens]]) * _SHORT
        target_s = SLO_SCALE * float(bases[each.name].seconds(*lengths)[0])
        asked.append(replace(each, residency=Residency.AUTO, ttft_s=target_s))
    node = Node("node", num_gpus, gpu)
    problem = Problem(tuple(asked), (node,), limits=_LIMITS, objective="goodput", policy=_POLICY)
    return problem, place(problem)


def units_on(layout: Layout, demands: Sequence[Demand], system: str) -> tuple[SimUnit, ...]:
    """The units of a layout, one a GPU."""
    kind = Residency.ON_DEMAND if system == "swap" else Residency.AUTO
    if system == "static":
        kind = Residency.ALWAYS
    given = tuple(replace(each, residency=kind) for each in demands)
    node = Node("node", len(layout.places), GPU)
    problem = Problem(given, (node,), limits=_LIMITS, policy=_POLICY)
    planned = [_planned(index, place, system) for index, place in enumerate(layout.places)]
    by_name = {each.name: each for each in demands}
    return tuple(
        SimUnit(_moving(unit.spec, by_name, system), unit.models)
        for unit in units_of(given_plan(planned), problem)
    )


def _planned(index: int, mine: Sequence[Demand], system: str) -> PlannedUnit:
    room, per_block, execution = 0, block_bytes(mine, _LIMITS), _execution(len(mine))
    if system == "static":
        blocks = kv_blocks(GPU, 1, mine, _LIMITS, execution)
    else:
        sizes = [resident_bytes(GPU, 1, each, per_block, execution) for each in mine]
        rest = usable_bytes(GPU, 1, execution)
        rest -= max(activation_bytes(each, _LIMITS) for each in mine)
        room = max(sizes) if system == "swap" else max(*sizes, int(_ROOM * rest))
        blocks = (rest - room) // per_block
    return PlannedUnit(
        id=f"gpu-{index}",
        node="node",
        gpus=(index,),
        tp=1,
        kv_blocks=blocks,
        models=given_models(mine),
        resident_bytes=room,
    )


def _moving(spec: UnitSpec, demands: Mapping[str, Demand], system: str) -> UnitSpec:
    """`spec` with what others measured of wakes, and the system's policy."""
    if system == "static":
        return spec
    models = tuple(
        replace(each, wake_s=WAKE_S_PER_GIB * weight_bytes(demands[each.name]) / GIB)
        for each in spec.models
    )
    return replace(spec, models=models, scheduler=replace(spec.scheduler, wakes=_WAKES[system]))


# Outcomes


@dataclass(frozen=True, slots=True)
class Outcome:
    """One system on so many GPUs."""

    system: str
    num_gpus: int
    layout: str
    in_time: float
    num_placed: int  # models
    wakes_per_s: float
    waking_share: float  # of the requests, those that waited for weights
    ahead: int  # wakes that nothing waited for
    ahead_used: int  # of these, with a request before the model was parked

    def row(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def run(
    system: str, num_gpus: int, demands: Sequence[Demand], coming: Sequence[Arrival]
) -> Outcome:
    """Simulate a system on so many GPUs."""
    if system == "planned":
        problem, plan = planned_by_itself(demands, num_gpus)
        kind, units = "planned", units_of(plan, problem)
    else:
        layout = layout_of(system, demands, num_gpus)
        kind, units = layout.kind, units_on(layout, demands, system)
    placed = {model.name for unit in units for model in unit.spec.models}
    mine = [each for each in coming if each.model in placed]
    result = simulate(units, mine)
    models = [model for unit in result.stats for model in unit.models]
    found = Outcome(
        system,
        num_gpus,
        kind,
        round(_in_time(result, demands) * len(mine) / len(coming), 4),
        len(placed),
        round(sum(each.num_wakes for each in models) / result.end_s, 4),
        round(float((result.records.rows["waking_s"] > 0).mean()), 4),
        sum(each.num_wakes_ahead for each in models),
        sum(each.num_wakes_ahead_used for each in models),
    )
    print(found.row(), flush=True)
    return found


def _in_time(result: SimResult, demands: Sequence[Demand]) -> float:
    alone = Problem(tuple(demands), (Node("alone", 1, GPU),))
    bases = base_s(result.records, base_latencies(alone))
    (share,) = attainment_at_scales(result.records, bases, (SLO_SCALE,))
    return float(share)
