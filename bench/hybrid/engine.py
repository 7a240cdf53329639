"""Interactive requests beside saturating batch work on the real engine: the CPU, in this process.

One random Llama of some 80 million parameters has a unit, one thread and a pool smaller than its
batch sequences. A run of each seed has three parts: interactive requests alone (Poisson), batch
requests alone (a closed loop that always has more than the unit can take in), and both. Targets of
the third part: 1.25 times the 99th percentiles of TTFT and TPOT over all first parts. For
comparison packings `priority` and `fcfs` run the third part once, with fewer requests. In full:
five runs of 1,000 interactive requests.

The interactive rate is 0.75 of what the unit bears of such requests alone. Steps take 20 ms and 1
ms a token. At lower rates requests that are alone are so fast that 1.25 times their TPOT leaves
only jobs that are short, and spend most of their time on weights: `most_kept` is what is left for
batch tokens in jobs no longer than that, the same for every packing. From 0.75 on it is above the
goal with one model and with two of different KV shapes, whose jobs take turns. `points` has both
at 0.45, 0.6 and 0.75, in one shorter run each.

Claims, over all runs:
- interactive_ttft_p99_ratio (and _tpot_): the p99 beside batch work over its target; held: <= 1.
- batch_throughput_kept: batch tokens/s, prompts included, beside the interactive requests, over
  those alone times the share of time that the interactive work leaves. That is 1 - rate / capacity:
  capacity is what the unit bears of interactive requests alone with all rows full, so the work is
  counted as what it costs at best.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.pop(0)  # the script's folder
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from muxcluster.engine.processes.owner_link import ONE_THREAD

if __name__ == "__main__" and any(os.environ.get(name) != ONE_THREAD[name] for name in ONE_THREAD):
    # The C library and OpenMP read these at start: all is measured as in a worker.
    os.execve(sys.executable, sys.orig_argv, {**os.environ, **ONE_THREAD})

from bench.harness import Bench, make_parser
from bench.hybrid.on_engine.load import BATCH, INTERACTIVE, Draws, Kind, Traffic
from bench.hybrid.on_engine.parts import (
    ALONE,
    BATCH_ALONE,
    OURS,
    Part,
    Verdict,
    claims_of,
    decode_steps,
    interactive_part,
    loop_part,
    samples_of,
    step_time_errors,
    targets,
    verdict,
)
from bench.hybrid.on_engine.unit import (
    MAX_SEQS,
    SHAPES,
    SMALL,
    THREADS,
    VOCABULARY,
    running,
    unit_spec,
    write_configs,
)
from muxcluster.core.request import Slo
from muxcluster.engine.unit.unit import Unit

BASELINES = ("priority", "fcfs")
LOAD = 0.75  # Interactive requests over what the unit bears of them
# Models and loads of the other points.
POINTS = ((1, 0.45), (1, 0.6), (2, 0.45), (2, 0.6), (2, 0.75))
_POINT_S = 35.0
_WARM_UP_S = 4.0
_MOST_OF_BASELINES = 300


@dataclass(slots=True)
class Runs:
    """Seeds on units of some models, and what came of them."""

    paths: Mapping[str, Path]
    seeds: range
    num_requests: int  # interactive ones of a part; 0: those of 35 seconds
    batch_s: float
    load: float = LOAD
    parts: list[Part] = field(default_factory=list)
    capacity_per_s: float = 0.0
    errors: dict[str, float] = field(default_factory=dict)

    def verdict(self, system: str, slo: Slo) -> Verdict:
        """Of all parts of a system."""
        return verdict(self.parts, system, slo, self.capacity_per_s, len(self.paths))

    def alone(self, capacity_s: float) -> Slo:
        """Capacity, interactive requests alone, batch alone, without targets; then the targets."""
        with self._unit(OURS, None) as (unit, traffic):
            self._loop(traffic, INTERACTIVE)
            part = loop_part("capacity", unit, traffic, capacity_s, self.seeds[0])
            mean_tokens = (sum(INTERACTIVE.prompt) + sum(INTERACTIVE.output)) / 2
            self.capacity_per_s = part.interactive_tokens_per_s / mean_tokens
            self._keep(part)
            traffic.stop()
            for seed in self.seeds:
                self._interactive(ALONE, unit, traffic, seed)
            self._loop(traffic, BATCH)
            for seed in self.seeds:
                self._keep(loop_part(BATCH_ALONE, unit, traffic, self.batch_s, seed))
        return targets([part for part in self.parts if part.system == ALONE])

    def both(self, packing: str, slo: Slo, seeds: range) -> None:
        """Interactive requests beside batch ones; some come before them, as after any start."""
        with self._unit(packing, slo) as (unit, traffic):
            self._interactive("warm-up", unit, traffic, self.seeds[0])
            self._loop(traffic, BATCH)
            for seed in seeds:
                self._interactive(packing, unit, traffic, seed)
            if packing == OURS:
                self.errors = step_time_errors(unit)

    @contextmanager
    def _unit(self, packing: str, slo: Slo | None) -> Iterator[tuple[Unit, Traffic]]:
        traffic = Traffic()
        with running(unit_spec(self.paths, packing, slo), traffic.hear) as unit:
            traffic.attach(unit)
            try:
                yield unit, traffic
            finally:
                traffic.stop()

    def _loop(self, traffic: Traffic, kind: Kind) -> None:
        """More at once than all rows, so somebody waits for every model."""
        num_at_once = round(1.5 * MAX_SEQS * len(self.paths))
        traffic.loop(kind, self._draws(self.seeds[0] + 1000), num_at_once)
        time.sleep(_WARM_UP_S)

    def _interactive(self, system: str, unit: Unit, traffic: Traffic, seed: int) -> None:
        rate_per_s = self.load * self.capacity_per_s
        num = self.num_requests or round(_POINT_S * rate_per_s)
        if system == "warm-up":
            num = round(_WARM_UP_S * rate_per_s)
        elif system in BASELINES:
            num = min(num, _MOST_OF_BASELINES)
        self._keep(
            interactive_part(system, seed, unit, traffic, self._draws(seed), (rate_per_s, num))
        )

    def _draws(self, seed: int) -> Draws:
        return Draws(tuple(self.paths), VOCABULARY, seed)

    def _keep(self, part: Part) -> None:
        row = part.row()
        print(row, file=sys.stderr, flush=True)
        if part.system != "warm-up":
            self.parts.append(part)


def point(folder: Path, num_models: int, load: float, seed: int) -> dict[str, Any]:
    """One run of other models or at another load, for the record."""
    paths = write_configs(folder, dict(list(SHAPES.items())[:num_models]))
    runs = Runs(paths, range(seed, seed + 1), 0, batch_s=6.0, load=load)
    slo = runs.alone(capacity_s=6.0)
    runs.both(OURS, slo, runs.seeds)
    found = asdict(runs.verdict(OURS, slo))
    print(num_models, load, found, flush=True)
    parts = [part.row() for part in runs.parts]
    return {"models": num_models, "load": load, "targets_ms": in_ms(slo), **found, "parts": parts}


def in_ms(slo: Slo) -> dict[str, float]:
    """For the record."""
    return {"ttft": round(1e3 * slo.ttft_s, 2), "tpot": round(1e3 * slo.tpot_s, 2)}


def main() -> None:
    """Measure, compare, publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--runs", type=int, help="seeds (5; 1 with --quick)")
    parser.add_argument("--requests", type=int, help="interactive ones a run (1000; 60)")
    parser.add_argument("--models", type=int, choices=(1, 2), default=1, help="in the unit")
    parser.add_argument("--load", type=float, default=LOAD, help="of capacity (%(default)s)")
    parser.add_argument("--no-points", action="store_true", help="leave out the other points")
    bench = Bench(parser)
    options, quick = bench.options, bench.options.quick
    seeds = range(options.seed, options.seed + (options.runs or (1 if quick else 5)))
    shapes = dict(list((SMALL if quick else SHAPES).items())[: options.models])
    requests = options.requests or (60 if quick else 1000)
    with tempfile.TemporaryDirectory(prefix="bench-hybrid-") as name:
        folder = Path(name)
        runs = Runs(
            write_configs(folder, shapes), seeds, requests, 4.0 if quick else 10.0, options.load
        )
        slo = runs.alone(capacity_s=4.0 if quick else 10.0)
        runs.both(OURS, slo, seeds)
        for packing in BASELINES:
            runs.both(packing, slo, seeds[:1])
        others = () if quick or options.no_points else POINTS
        points = [point(folder, *each, options.seed) for each in others]
    found = {system: runs.verdict(system, slo) for system in (OURS, *BASELINES)}
    for system, each in found.items():
        print(system, asdict(each), flush=True)
    bench.publish(
        claims_of(found[OURS]),
        samples_of(runs.parts),
        threads=THREADS,
        models=shapes,
        load=options.load,
        targets_ms=in_ms(slo),
        capacity_per_s=round(runs.capacity_per_s, 3),
        verdicts={system: asdict(each) for system, each in found.items()},
        decode_steps=decode_steps(runs.parts),
        points=points,
        step_time_errors=runs.errors,
        parts=[part.row() for part in runs.parts],
    )


if __name__ == "__main__":
    main()
