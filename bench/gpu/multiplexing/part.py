"""Parts of bench/gpu/multiplex.py in a process of their own; see isolated.py."""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose kernels.py would hide the package
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bench.gpu.multiplexing.play import play, requests_of, row_of, warm_up
from bench.gpu.multiplexing.profile import DRY_GRID, GPU_GRID, measured
from bench.gpu.multiplexing.setup import cost_of, site_of, systems_of, work_of
from bench.gpu.multiplexing.split import Split
from bench.gpu.multiplexing.systems import (
    DRY_SYSTEMS,
    SYSTEMS,
    System,
    shared_unit,
    static_units,
    static_whole,
)
from bench.gpu.running.card import card_of
from bench.gpu.running.isolated import run_here
from bench.gpu.running.listener import Listener
from bench.gpu.running.run import Run
from muxcluster.core.errors import ConfigError, EngineFailure
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import Executor
from muxcluster.engine.unit.executor_choice import make_executor
from muxcluster.engine.unit.partition_choice import settle_partition
from muxcluster.engine.unit.unit import Unit
from muxcluster.placement.cost import Profile

_CLOSE_S = 8.0  # Kept for ending the units' processes
PARTITIONS = ("green", "mps", "none")
# Tried in this order for the profile: contexts are made sooner than processes. In a dry run the
# first is one that a CPU cannot have.
DRY_PARTITIONS = ("mps", "threads", "none")


def profile(run: Run) -> None:
    """The profile, as a row."""
    card = card_of(run.device)
    work, site = work_of(run.given, tiny=run.tiny), site_of(tiny=run.tiny)
    partitions = DRY_PARTITIONS if run.tiny else PARTITIONS
    name = "cpu" if run.tiny else card["name"]
    found = measured(work, site, partitions, DRY_GRID if run.tiny else GPU_GRID, name)
    row = {
        "case": "profile",
        "card": card,
        "partition": found.partition,
        "refused": found.refused,
        "profile": json.loads(found.profile.to_json()),
    }
    run.keep(row, {})
    num_cells = sum(len(model.cells) for model in found.profile.models)
    print(f"profile by {found.partition}: {num_cells} cells, {len(found.profile.pairs)} pairs")


def system(run: Run, name: str) -> None:
    """Plays the workload on it; a row, which says why where the system cannot be had."""
    asked = next(each for each in systems_of(tiny=run.tiny) if each.name == name)
    work, site = work_of(run.given, tiny=run.tiny), site_of(tiny=run.tiny)
    cost = cost_of(Profile.from_json(run.given["profile"]))
    arrivals = work.arrivals()
    vocab = {tenant.name: tenant.shape.vocab_size for tenant in work.tenants}
    listener = Listener()
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder, ExitStack() as stack:
        whole = shared_unit(Path(folder), work, site, asked)
        begun_s = monotonic()
        try:
            whole = settle_partition(whole)
            units = stack.enter_context(_started(asked, whole, run.given["shares"], listener))
        except (ConfigError, EngineFailure, ImportError) as error:
            run.keep({"case": asked.name, **asdict(asked), "skipped": str(error)}, {})
            print(f"{asked.name:<15} skipped: {error}", flush=True)
            return
        start_up_s = monotonic() - begun_s
        warm_up(units.of, vocab, listener, run.ends_at)
        units.listener = fresh = Listener()
        until_s = min(run.ends_at - _CLOSE_S, monotonic() + work.duration_s + run.given["drain_s"])
        records = play(units.of, requests_of(arrivals, vocab, work.seed), fresh, until_s)
    row = {"case": asked.name, **asdict(asked), "start_up_s": start_up_s}
    row |= {"partition": whole.partition}
    row |= row_of(records, work, cost)
    run.keep(row, {f"{asked.name} latency_s": _latencies(records)})
    print(f"{asked.name:<15} {row['requests_per_s']:.2f} requests/s", flush=True)


def _latencies(records: Any) -> list[float]:
    done = records.where(records.is_finished).rows
    return [round(float(each), 4) for each in done["last_token_s"] - done["arrival_s"]]


class Units:
    """of: the unit of each model. listener: who hears them."""

    def __init__(self, listener: Listener) -> None:
        self.of: dict[str, Unit] = {}
        self.listener = listener

    def add(self, spec: UnitSpec, executor: Executor) -> Unit:
        unit = Unit(spec, lambda deltas: self.listener.hear(deltas), executor=executor)
        self.of |= {model.name: unit for model in spec.models}
        return unit


@contextmanager
def _started(
    asked: System, whole: UnitSpec, shares: Mapping[str, float], listener: Listener
) -> Iterator[Units]:
    """Raises ConfigError, EngineFailure or ImportError where the partition cannot be had."""
    units = Units(listener)
    with ExitStack() as stack:
        if asked.is_static:
            specs = static_units(whole, shares)
            executor = make_executor(static_whole(whole, shares))
            split = stack.enter_context(Split(executor, specs))
            made = [units.add(*each) for each in zip(specs, split.sides, strict=True)]
        else:
            made = [units.add(whole, make_executor(whole))]
        for unit in made:
            unit.start()
            stack.callback(unit.close)
        yield units


PARTS: dict[str, Callable[[Run], None]] = {
    "profile": profile,
    **{each.name: partial(system, name=each.name) for each in (*SYSTEMS, *DRY_SYSTEMS)},
}

if __name__ == "__main__":
    sys.exit(run_here(PARTS))
