"""More models than memory: a CPU unit measured, and thirty models on few H100s simulated.

Measured (`bench/online/parked.py`), on two cores or more without other work:

- seconds of a wake against reading and packing the same linears in one process, and against a copy;
- requests in time, tiny models of several families with memory for a third of them, Zipf arrivals
  at rising rates; against the same engine with the policy `swap` and memory for one;
- requests lost while workers, owners of models and the pool's owner are killed;
- tokens/s of two models with eight others parked beside them, over those without, in pairs; and
  the same by processor time, which other work on the machine disturbs less.

Simulated: GPUs needed for 99 % of the requests in time.

Popularity is the arena's mean rates over 125 days, continued to 30 models by their slope: at these
rates, and at other loads (`--load`: times these rates; claims of the first load have no suffix).
Over the run, rates follow a day of a ServeGen model, condensed. Every
model is on one GPU, a unit per GPU, in the lane "mixed" (one job at a time):

- ours: more models a GPU than fit; weights move as `scheduling/residency` says.
- swap: the same models on the same GPUs, one resident at a time, by arrival, as behind llama-swap.
- static: as many of the most popular models as there is memory for, all resident; requests for
  those without a place are not in time.

No GPU unit can be started so yet: the engine moves weights on CPU units only. In time means here at
most `SLO_SCALE` times what the request takes alone on a GPU. A wake takes `WAKE_S_PER_GIB`, which
is what was measured elsewhere for copies from host memory; a copy does not slow jobs. Models that
the arena has no weights of stand for 13B ones.
"""

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.pop(0)  # the script's folder
sys.path.insert(0, str(ROOT))

from bench.harness import Bench, Claim, make_parser
from bench.online.parked import (
    TARGET_S,
    Pace,
    Wakes,
    beside_sleepers,
    build_families,
    measure_wakes,
    rivals,
    with_kills,
)
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
from muxcluster.placement.plan import PlannedUnit
from muxcluster.placement.problem import Demand, Limits, Node, Problem
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.sim.core.planned import units_of
from muxcluster.sim.core.simulate import simulate
from muxcluster.sim.core.unit import SimUnit
from muxcluster.sim.report.slo import base_latencies, base_s
from muxcluster.workload.arrival import Arrival
from muxcluster.workload.metrics.slo import attainment_at_scales
from muxcluster.workload.seeds import rng_for

NUM_MODELS = 30
WAKE_S_PER_GIB = 0.047
SLO_SCALE = 8.0
IN_TIME = 0.99
SYSTEMS = ("ours", "swap", "static")
FAILING = 0.9  # where fewer of swap's requests are in time, it has begun to fail
_GPU = GPUS["H100"]
_SIGMA = 1.0  # of the log-normal lengths
_LONGEST, _CONTEXT = 512, 1024
_ROOM = 0.8  # of a GPU's memory for weights, where no model needs more; KV has the rest
_POLICY = UnitPolicy(SchedulerSpec(lane="mixed", packing="priority"))
_LIMITS = Limits()
_WINDOWS_A_DAY = round(86_400 / WINDOW_S)
_SIZES = {3: "llama-3.2-3b", 6: "llama-7b", 7: "llama-7b", 12: "llama-13b", 13: "llama-13b"}
_LARGE = "llama-30b"  # from 30B on


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
    found = []
    share = np.concatenate(([0.0], np.cumsum(day) / day.sum()))
    places = np.linspace(0.0, seconds, len(share))
    for demand in demands:
        rng = rng_for(seed, "residency", demand.name)
        count = rng.poisson(demand.rate * seconds)
        times = np.sort(np.interp(rng.random(count), share, places))
        lengths = [
            np.clip(rng.lognormal(np.log(mean) - _SIGMA**2 / 2, _SIGMA, count), 1, _LONGEST)
            for mean in (demand.prompt_tokens, demand.output_tokens)
        ]
        found += [
            Arrival(float(at), f"{demand.name}/{i}", demand.name, int(prompt), int(output))
            for i, (at, prompt, output) in enumerate(zip(times, *lengths, strict=True))
        ]
    return sorted(found, key=lambda each: (each.time_s, each.request_id))


@dataclass(frozen=True, slots=True)
class Outcome:
    """One system on so many GPUs."""

    system: str
    num_gpus: int
    in_time: float
    num_placed: int  # models
    wakes_per_s: float
    waking_share: float  # of the requests, those that waited for weights

    def row(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def static_places(demands: Sequence[Demand], num_gpus: int) -> list[list[Demand]]:
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


def _packed(demands: Sequence[Demand], num_gpus: int, *, is_even: bool) -> list[list[Demand]]:
    """Those of `demands` that have a place when they are placed in that order."""
    places: list[list[Demand]] = [[] for _ in range(num_gpus)]
    for demand in demands:
        order = sorted(places, key=lambda each: sum(map(_work, each))) if is_even else places
        place = next((each for each in order if _fits([*each, demand])), None)
        if place is not None:
            place.append(demand)
    return [place for place in places if place]


def shared_places(demands: Sequence[Demand], num_gpus: int) -> list[list[Demand]]:
    """Models by GPU, each where there is least work so far; the large ones on as few GPUs as they
    take of the work, for they leave little memory to others."""
    large = [each for each in demands if weight_bytes(each) > _ROOM * _usable()]
    small = [each for each in demands if each not in large]
    whole = sum(map(_work, demands))
    num_large = min(num_gpus - 1, max(1, round(num_gpus * sum(map(_work, large)) / whole)))
    if num_gpus == 1:
        return [list(demands)]
    places: list[list[Demand]] = [[] for _ in range(num_gpus)]
    for group, mine in ((large, places[:num_large]), (small, places[num_large:])):
        for demand in sorted(group, key=lambda each: -_work(each)):
            min(mine, key=lambda each: sum(map(_work, each))).append(demand)
    return [place for place in places if place]


def _work(demand: Demand) -> float:
    return demand.rate * demand.shape.num_params


def _usable() -> int:
    return usable_bytes(_GPU, 1, _execution(NUM_MODELS))


def _execution(num_models: int) -> Execution:
    return executions(_GPU, 1, num_models, _POLICY)[0]


def _fits(demands: Sequence[Demand]) -> bool:
    try:
        kv_blocks(_GPU, 1, demands, _LIMITS, _execution(len(demands)))
    except DoesNotFit:
        return False
    return True


def _held(demand: Demand, per_block: int) -> int:
    """Bytes that a model takes while it is resident."""
    return resident_bytes(_GPU, 1, demand, per_block, _execution(NUM_MODELS))


def units_on(
    places: Sequence[Sequence[Demand]], demands: Sequence[Demand], system: str
) -> list[SimUnit]:
    """A unit for each GPU."""
    node = Node("node", len(places), _GPU)
    problem = Problem(tuple(demands), (node,), limits=_LIMITS, policy=_POLICY)
    planned, rooms = [], []
    for index, mine in enumerate(places):
        per_block = block_bytes(mine, _LIMITS)
        room = 0
        if system == "static":
            blocks = kv_blocks(_GPU, 1, mine, _LIMITS, _execution(len(mine)))
        else:
            largest = max(_held(each, per_block) for each in mine)
            rest = _usable() - max(activation_bytes(each, _LIMITS) for each in mine)
            room = largest if system == "swap" else max(largest, int(_ROOM * rest))
            blocks = (rest - room) // per_block
        planned.append(
            PlannedUnit(
                id=f"gpu-{index}",
                node="node",
                gpus=(index,),
                tp=1,
                kv_blocks=blocks,
                models=given_models(mine),
            )
        )
        rooms.append(room)
    by_name = {each.name: each for each in demands}
    return [
        SimUnit(_tight(unit.spec, room, by_name, system), unit.models) if room else unit
        for unit, room in zip(units_of(given_plan(planned), problem), rooms, strict=True)
    ]


def _tight(spec: UnitSpec, room: int, demands: Mapping[str, Demand], system: str) -> UnitSpec:
    kind = Residency.ON_DEMAND if system == "swap" else Residency.AUTO
    models = tuple(
        replace(
            model,
            residency=kind,
            resident_bytes=_held(demands[model.name], spec.block_bytes),
            wake_s=WAKE_S_PER_GIB * weight_bytes(demands[model.name]) / GIB,
        )
        for model in spec.models
    )
    wakes = "swap" if system == "swap" else "deadline"
    scheduler = replace(spec.scheduler, wakes=wakes)
    return replace(spec, models=models, resident_bytes=room, scheduler=scheduler)


def run(
    system: str, num_gpus: int, demands: Sequence[Demand], coming: Sequence[Arrival]
) -> Outcome:
    """Simulate a system on so many GPUs."""
    find = static_places if system == "static" else shared_places
    places = find(demands, num_gpus)
    placed = {each.name for place in places for each in place}
    mine = [each for each in coming if each.model in placed]
    result = simulate(units_on(places, demands, system), mine)
    alone = Problem(tuple(demands), (Node("alone", 1, _GPU),))
    bases = base_s(result.records, base_latencies(alone))
    (share,) = attainment_at_scales(result.records, bases, (SLO_SCALE,))
    num_wakes = sum(model.num_wakes for unit in result.stats for model in unit.models)
    return Outcome(
        system,
        num_gpus,
        round(float(share) * len(mine) / len(coming), 4),
        len(placed),
        round(num_wakes / result.end_s, 4),
        round(float((result.records.rows["waking_s"] > 0).mean()), 4),
    )


def needed(
    system: str, demands: Sequence[Demand], coming: Sequence[Arrival], most: int
) -> list[Outcome]:
    """Outcomes by falling share in time, the fewest GPUs with enough of them last.

    Twice as many GPUs until enough is in time, then halves of what is between. The last one has
    `most` where no number is enough.
    """
    found: dict[int, Outcome] = {}

    def is_enough(num_gpus: int) -> bool:
        if num_gpus not in found:
            found[num_gpus] = run(system, num_gpus, demands, coming)
            print(found[num_gpus].row(), flush=True)
        return found[num_gpus].in_time >= IN_TIME

    too_few, enough = 0, 1
    while not is_enough(enough) and enough < most:
        too_few, enough = enough, min(most, 2 * enough)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if is_enough(middle):
            enough = middle
        else:
            too_few = middle
    return [found[num_gpus] for num_gpus in sorted(found) if num_gpus <= enough]


@dataclass(frozen=True, slots=True)
class Simulated:
    """The outcomes of all systems at one load."""

    load: float  # times the arena's rates
    seconds: float  # virtual ones
    num_requests: int
    requests_per_s: float
    outcomes: Mapping[str, Sequence[Outcome]]  # of each system, the fewest GPUs last
    same: Outcome  # swap's on as many GPUs as ours need

    @classmethod
    def of(cls, data: Path, load: float, seconds: float, most: int, seed: int) -> "Simulated":
        """Simulate all systems."""
        demands = demands_of(data, load)
        coming = arrivals_of(demands, day_of(data), seconds, seed)
        outcomes = {system: needed(system, demands, coming, most) for system in SYSTEMS}
        same = run("swap", outcomes["ours"][-1].num_gpus, demands, coming)
        rate = round(sum(each.rate for each in demands), 3)
        return cls(load, seconds, len(coming), rate, outcomes, same)

    def claims(self, suffix: str) -> list[Claim]:
        """GPUs of the rivals over ours; requests in time, ours over swap's on as many GPUs."""
        ours, swap, static = (self.outcomes[system][-1] for system in SYSTEMS)
        in_time = ours.in_time / max(self.same.in_time, 1e-4)
        return [
            Claim(f"gpus_saved_over_static{suffix}", static.num_gpus / ours.num_gpus, "x", 2.0),
            Claim(f"gpus_saved_over_swap{suffix}", swap.num_gpus / ours.num_gpus, "x", 1.0),
            Claim(f"in_time_over_swap{suffix}", in_time, "x", 1.0),
        ]

    def told(self) -> dict[str, Any]:
        """What the record says of it."""
        return {
            "load": self.load,
            "virtual_s": self.seconds,
            "num_requests": self.num_requests,
            "requests_per_s": self.requests_per_s,
            "rows": [each.row() for found in self.outcomes.values() for each in found],
        }

    def samples(self, suffix: str) -> dict[str, list[float]]:
        """Shares in time by system."""
        return {
            f"{system}{suffix}": [each.in_time for each in found]
            for system, found in self.outcomes.items()
        }


@dataclass(frozen=True, slots=True)
class Measured:
    """What the engine did."""

    wakes: Wakes
    rows: list[dict[str, Any]]  # by rate, then by system: see `rivals`
    killed: dict[str, Any]
    sleepers: list[tuple[Pace, Pace]]  # without and with them

    def claims(self) -> list[Claim]:
        """Seconds of a wake; both systems at the lowest rate at which swap has begun to fail, else
        at the highest one; and what was lost in all runs of ours."""
        ours, swap = self.rows[::2], self.rows[1::2]
        failing = (i for i, row in enumerate(swap) if row["in_time"] < FAILING)
        at = next(failing, len(swap) - 1)
        lost = sum(row["lost"] for row in (*ours, self.killed))
        over = ours[at]["in_time"] / max(swap[at]["in_time"], 1e-4)
        p99 = swap[at]["ttft_p99_s"] / ours[at]["ttft_p99_s"]
        return [
            Claim("wake_over_possible", round(self.wakes.over_possible(), 3), "x", 0.7),
            Claim("wake_over_memcpy", round(self.wakes.over_copy(), 3), "x"),
            Claim("engine_in_time_over_swap", round(over, 3), "x", 3.0),
            Claim("engine_p99_cut_over_swap", round(p99, 3), "x"),
            Claim("requests_lost", lost, "requests", 0),
            Claim("throughput_beside_sleepers", self._beside_sleepers(0), "x", 0.98),
            Claim("tokens_per_cpu_s_beside_sleepers", self._beside_sleepers(1), "x", 0.98),
        ]

    def _beside_sleepers(self, place: int) -> float:
        """Median ratio of a field of `Pace`."""
        ratios = [beside[place] / alone[place] for alone, beside in self.sleepers]
        return round(float(np.median(ratios)), 4)

    def told(self) -> dict[str, Any]:
        """What the record says of it."""
        wakes = self.wakes
        return {
            "target_s": TARGET_S,
            "wake_s_per_gib_measured": wakes.per_gib(wakes.wake_s, wakes.total_bytes),
            "pack_s_per_gib": wakes.per_gib(wakes.pack_s, wakes.linear_bytes),
            "copy_s_per_gib": wakes.per_gib(wakes.copy_s, wakes.total_bytes),
            "model_bytes": wakes.total_bytes,
            "rows": self.rows,
            "killed": self.killed,
            "sleepers": [[*map(list, pair)] for pair in self.sleepers],
        }


def measure(*, is_quick: bool, seed: int) -> Measured:
    """Run the engine's part."""
    rates, seconds = ((4.0,), 5.0) if is_quick else ((1.0, 2.0, 4.0, 8.0, 16.0), 60.0)
    with tempfile.TemporaryDirectory(prefix="muxcluster-bench-") as folder:
        wakes = measure_wakes(Path(folder), 2 if is_quick else 16, 3 if is_quick else 9)
        paths = build_families(Path(folder), 4 if is_quick else 12)
        rows = rivals(paths, rates, seconds, seed)
        sleeping = dict(list(paths.items())[:10])  # two, and eight sleepers
        sleepers = beside_sleepers(sleeping, 2 if is_quick else 10, 1.0 if is_quick else 5.0)
        killed = with_kills(paths, rates[len(rates) // 2], seconds, 3 if is_quick else 12, seed)
    return Measured(wakes, rows, killed, sleepers)


def main() -> None:
    """Measure, simulate, print, publish."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--seconds", type=float, help="virtual ones (20000 / load; 1500 / load with --quick)"
    )
    parser.add_argument(
        "--load", type=float, nargs="+", help="times the arena's rates (1 10; 10 with --quick)"
    )
    parser.add_argument(
        "--part", choices=("engine", "simulated", "both"), default="both", help="what to run (both)"
    )
    parser.add_argument("--most", type=int, default=24, metavar="N", help="GPUs at most (24)")
    bench = Bench(parser)
    options = bench.options
    measured = None
    if options.part != "simulated":
        measured = measure(is_quick=options.quick, seed=options.seed)
    if options.part == "engine":
        assert measured is not None
        bench.publish(measured.claims(), _samples(measured), engine=measured.told())
        return
    data = bench.data()
    loads: list[float] = options.load or ([10.0] if options.quick else [1.0, 10.0])
    claims = [] if measured is None else measured.claims()
    samples = _samples(measured)
    found: list[Simulated] = []
    for load in loads:
        seconds = options.seconds or (1500.0 if options.quick else 20_000.0) / load
        found.append(Simulated.of(data, load, seconds, options.most, options.seed))
        suffix = f"_at_{load:g}x" if len(found) > 1 else ""
        claims += found[-1].claims(suffix)
        samples |= found[-1].samples(suffix)
    bench.publish(
        claims,
        samples,
        engine=None if measured is None else measured.told(),
        weights_gib=round(sum(map(weight_bytes, demands_of(data, 1.0))) / GIB, 1),
        slo_scale=SLO_SCALE,
        gpu=_GPU.name,
        is_simulated=True,
        wake_s_per_gib=WAKE_S_PER_GIB,
        simulated=[each.told() for each in found],
    )


def _samples(measured: Measured | None) -> dict[str, list[float]]:
    if measured is None:
        return {}
    wakes = measured.wakes
    series = {"wake_s": wakes.wake_s, "pack_s": wakes.pack_s, "copy_s": wakes.copy_s}
    return {name: [round(each, 4) for each in found] for name, found in series.items()}


if __name__ == "__main__":
    main()
