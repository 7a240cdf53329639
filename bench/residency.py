"""More models than memory: a CPU unit measured, and thirty models on few H100s simulated.

Measured (`bench/online/parked.py`), on two cores or more without other work:

- seconds of a wake against reading and packing the same linears in one process, and against a copy;
- requests in time, tiny models of several families with memory for a third of them, Zipf arrivals
  at rising rates; against the same engine with the policy `swap`, one model at a time; and, at the
  rate where that begins to fail, against a `muxcluster serve` for each model, started and stopped
  on demand (`bench/online/on_demand.py`), on the same trace and memory for weights;
- requests lost while workers, owners of models and the pool's owner are killed;
- tokens of two models with eight others parked beside them, over those without, in interleaved
  pairs: for each second of processor time, which other work on the machine hardly disturbs, and for
  each second; and the bytes of a parked model, as the unit tells them and as the memory of the
  pool's owner grows.

Simulated (`bench/planning/parked.py`, `bench/planning/parking_rivals.py`): GPUs needed for 99 % of
the requests in time; requests in time on the same `NUM_GPUS` GPUs at rising loads; and what wakes
ahead of requests gain (`policy.foresight`) on one GPU less than ours needs, with the same arrivals
and with timers that ask every second model.

Popularity is the arena's mean rates over 125 days, continued to 30 models by their slope: at these
rates, and at other loads (`--load`: times these rates; claims of the first load have no suffix, and
the last one begins the rising loads). Over the run, rates follow a day of a ServeGen model,
condensed. A unit per GPU, in the lane "mixed" (one job at a time):

- ours: more models a GPU than fit; weights move as `scheduling/residency` says. Models of 30B and
  more have GPUs of their own, by their part of the work; each other model may run on any of the
  other GPUs, where its weights are or come first at least cost for others, as the router sends it.
- swap: each model on one GPU, by work; one resident at a time, by arrival, as behind llama-swap.
  (With every model on many GPUs fewer requests were in time: 73 % instead of 90 % on six.)
- static: as many of the most popular models as there is memory for, all resident; requests for
  those without a place are not in time.

The planner lays out none of these; what its own plan has in time on as many GPUs as ours needs is
a claim beside them.

No GPU unit can be started so yet: the engine moves weights on CPU units only. In time means here at
most `SLO_SCALE` times what the request takes alone on a GPU. A wake takes `WAKE_S_PER_GIB`, which
is what was measured elsewhere for copies from host memory; a copy does not slow jobs. Models that
the arena has no weights of stand for 13B ones.
"""

import asyncio
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.pop(0)  # the script's folder
sys.path.insert(0, str(ROOT))

from bench.harness import Bench, Claim, make_parser
from bench.online.on_demand import OnDemand, play, starter
from bench.online.parked import (
    TARGET_S,
    Wakes,
    build_families,
    bytes_of,
    measure_wakes,
    rivals,
    third_of,
    trace_of,
    with_kills,
)
from bench.online.sleepers import Sleepers, beside_sleepers
from bench.planning.parked import GPU, SLO_SCALE, WAKE_S_PER_GIB, demands_of
from bench.planning.parking_rivals import FAILING, Fewest, Foreseen, SameGpus
from muxcluster.placement.hardware import GIB
from muxcluster.placement.memory import weight_bytes

NUM_GPUS = 8  # on which the systems are compared at rising loads


@dataclass(frozen=True, slots=True)
class Measured:
    """What the engine did."""

    wakes: Wakes
    rows: list[dict[str, Any]]  # by rate, then by system: see `rivals`
    processes: dict[str, Any]  # one a model, at the rate where swap has begun to fail
    killed: dict[str, Any]
    sleepers: Sleepers

    def claims(self) -> list[Claim]:
        """Seconds of a wake; both systems at the lowest rate at which swap has begun to fail, else
        at the highest one; and what was lost in all runs of ours."""
        ours, swap = self.rows[::2], self.rows[1::2]
        at = failing_at(swap)
        lost = sum(row["lost"] for row in (*ours, self.killed))
        over = ours[at]["in_time"] / max(swap[at]["in_time"], 1e-4)
        p99 = swap[at]["ttft_p99_s"] / ours[at]["ttft_p99_s"]
        over_processes = ours[at]["in_time"] / max(self.processes["in_time"], 1e-4)
        told = self.sleepers.told_bytes.values()
        return [
            Claim("wake_over_possible", round(self.wakes.over_possible(), 3), "x", 0.7),
            Claim("wake_over_memcpy", round(self.wakes.over_copy(), 3), "x"),
            Claim("engine_in_time_over_swap", round(over, 3), "x", 3.0),
            Claim("engine_p99_cut_over_swap", round(p99, 3), "x"),
            Claim("engine_in_time_over_processes", round(over_processes, 3), "x", 3.0),
            Claim("requests_lost", lost, "requests", 0),
            Claim("tokens_per_cpu_s_beside_sleepers", self._beside_sleepers(1), "x", 0.98),
            Claim("throughput_beside_sleepers", self._beside_sleepers(0), "x", 0.98),
            Claim("sleeper_told_mib", round(float(np.mean(list(told))) / 2**20, 4), "MiB"),
            Claim("sleeper_owner_mib", round(self.sleepers.owner_bytes / 2**20, 4), "MiB"),
        ]

    def _beside_sleepers(self, place: int) -> float:
        """Median over the pairs of the ratio of a field of `Pace`."""
        ratios = [beside[place] / alone[place] for alone, beside in self.sleepers.paces]
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
            "processes": self.processes,
            "killed": self.killed,
            "sleepers": [[*map(list, pair)] for pair in self.sleepers.paces],
            "sleeper_told_bytes": self.sleepers.told_bytes,
            "sleeper_owner_bytes": round(self.sleepers.owner_bytes),
        }


def measure(*, is_quick: bool, seed: int) -> Measured:
    """Run the engine's part."""
    rates, seconds = ((4.0,), 5.0) if is_quick else ((1.0, 2.0, 4.0, 8.0, 16.0), 60.0)
    with tempfile.TemporaryDirectory(prefix="muxcluster-bench-") as folder:
        wakes = measure_wakes(Path(folder), 2 if is_quick else 16, 3 if is_quick else 9)
        paths = build_families(Path(folder), 4 if is_quick else 12)
        rows = rivals(paths, rates, seconds, seed)
        rate = rates[failing_at(rows[1::2])]
        asked_s = 1.0 if is_quick else seconds  # starts take long
        processes = one_process_each(paths, rate, asked_s, seed, Path(folder))
        sleeping = dict(list(paths.items())[:10])  # two, and eight sleepers
        sleepers = beside_sleepers(sleeping, 2 if is_quick else 16, 32 if is_quick else 400)
        killed = with_kills(paths, rates[len(rates) // 2], seconds, 3 if is_quick else 12, seed)
    return Measured(wakes, rows, processes, killed, sleepers)


def failing_at(swap: Sequence[Mapping[str, Any]]) -> int:
    """The first row at which swap has begun to fail; else the last one."""
    failing = (i for i, row in enumerate(swap) if row["in_time"] < FAILING)
    return next(failing, len(swap) - 1)


def one_process_each(
    paths: Mapping[str, Path], rate: float, seconds: float, seed: int, folder: Path
) -> dict[str, Any]:
    """A server for each model, started and stopped on demand, on the trace of `rivals`."""
    sizes = {name: bytes_of(path) for name, path in paths.items()}
    asks = trace_of(list(paths), rate, seconds, seed)

    async def run() -> dict[str, Any]:
        system = OnDemand(sizes, third_of(paths), starter(paths, folder))
        found = (await play(asks, system)).result()
        return {"system": "processes", "rate": rate, **found, "starts": system.num_starts}

    # where a server does not start its requests never get a token, which JSON has no number for
    row = {name: None if value == math.inf else value for name, value in asyncio.run(run()).items()}
    print(row, flush=True)
    return row


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
    load_s = 1500.0 if options.quick else 20_000.0
    found: list[Fewest] = []
    for load in loads:
        seconds = options.seconds or load_s / load
        found.append(Fewest.of(data, load, seconds, options.most, options.seed))
        suffix = f"_at_{load:g}x" if len(found) > 1 else ""
        claims += found[-1].claims(suffix)
        samples |= found[-1].samples(suffix)
    same = SameGpus.of(data, NUM_GPUS, found[-1].load, load_s, options.seed)
    num_fewer = max(1, found[-1].num_ours - 1)
    foreseen = Foreseen.of(data, found[-1].load, num_fewer, found[-1].seconds, options.seed)
    bench.publish(
        claims + same.claims() + foreseen.claims(),
        samples,
        engine=None if measured is None else measured.told(),
        weights_gib=round(sum(map(weight_bytes, demands_of(data, 1.0))) / GIB, 1),
        slo_scale=SLO_SCALE,
        gpu=GPU.name,
        is_simulated=True,
        wake_s_per_gib=WAKE_S_PER_GIB,
        simulated=[each.told() for each in found],
        same_gpus=same.told(),
        foresight=foreseen.told(),
    )


def _samples(measured: Measured | None) -> dict[str, list[float]]:
    if measured is None:
        return {}
    wakes = measured.wakes
    series = {"wake_s": wakes.wake_s, "pack_s": wakes.pack_s, "copy_s": wakes.copy_s}
    return {name: [round(each, 4) for each in found] for name, found in series.items()}


if __name__ == "__main__":
    main()
