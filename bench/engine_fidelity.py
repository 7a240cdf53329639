"""Does the simulator say what our own engine does? Both serve the same requests, on this CPU.

Random Llamas of some ten million parameters are profiled with `muxcluster profile`. For each case
the planner's unit is simulated with that profile, then started in this process and given the same
requests at the same times: Poisson arrivals at a part of the simulated capacity, log-normal
lengths, a quarter of them batch class. The unit that is simulated is the very specification that
runs. No constant is fitted to any case: what the simulator knows of this machine is the profile.

A host's other guests make a machine slower or faster by tens of percent within minutes, as no
simulator can know. So a case is served in stretches of some seconds, and fixed work, forwards of a
model in a process of its own, is timed between the parts of the profile and the stretches. All
seconds of the profile are stated at one speed. Requests are
sent, and all times are taken, in units of that work: on a machine that is a tenth slower now, a
tenth later. A stretch beside which others took more than a few hundredths of the processors, or
over which the fixed work's time changed by more than a tenth, is served again, a few times at most,
and if need be left out on both sides; the record has all tries of all stretches. Other work on the
machine disturbs one side only: run it alone.

Claims, medians over the cases of the relative error of the simulated figure:
- throughput_median_abs_error: requests/s from the first arrival to the last token of a stretch;
- ttft_p50_median_abs_error, ttft_p95_median_abs_error: of all requests of a case.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.pop(0)  # the script's folder
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.fidelity.profiling import MOST_DRIFT, MOST_TRIES, Grid, Profiled, profiled
from bench.fidelity.rows import (
    Part,
    Side,
    claims_of,
    parts_of,
    row_of,
    samples_of,
    side_of,
    simulated_jobs,
)
from bench.fidelity.served import Served, Session
from bench.fidelity.setups import (
    SHAPES,
    Case,
    Setup,
    arrivals,
    case_of,
    in_a_row,
    write_config,
    write_models,
)
from bench.fidelity.speed import MachineSpeed, SpeedProbe
from bench.harness import Bench, make_parser
from bench.processes import settle
from muxcluster.config.load import load_config
from muxcluster.config.planner_input import nodes_of
from muxcluster.config.planning import plan_for
from muxcluster.config.profiles import read_profile
from muxcluster.config.units import unit_specs
from muxcluster.core.unitspec import UnitSpec
from muxcluster.placement.cost import cost_for
from muxcluster.sim.core.simulate import simulate
from muxcluster.sim.core.timeline import JobSpan
from muxcluster.sim.core.unit import SimModel, SimUnit
from muxcluster.workload.arrival import Arrival

SETUPS = (
    Setup(("even",), "mixed", "priority"),
    Setup(("wide", "narrow"), "adbs", "hybrid"),
    Setup(("even", "deep"), "adbs", "priority", sharing="always"),
    Setup(("even", "wide", "narrow"), "mixed", "hybrid"),
    Setup(("even", "wide", "deep", "narrow"), "temporal", "priority"),
)
QUICK = (SETUPS[0], SETUPS[2])
# Of capacity. Just below and above it waits multiply every error, this machine's own drift too.
LOADS = (0.4, 0.7, 1.4)
QUICK_LOADS = (0.4, 1.4)
# All batches at all lengths, and many rows at one.
GRIDS = (
    Grid("1,4,16", "16,64,160"),
    Grid("48", "64"),
    Grid("1,16", "160", is_pairs=True),
)
QUICK_GRIDS = (Grid("1,8", "16,96"), Grid("8", "96", is_pairs=True))
_NUM_FOR_CAPACITY = 400
# Share of all processors that others may take while a stretch is served; the kernel's own threads
# take one hundredth here.
_MOST_OTHERS = 0.03
_RATE_PER_S = 10.0  # in the configuration: its plan is for any rate


def units_of(config: Path) -> tuple[UnitSpec, SimUnit]:
    """The planned unit, as the engine gets it and as it is simulated."""
    loaded = load_config(config)
    (node,) = nodes = nodes_of(loaded)
    (spec,) = unit_specs(loaded, plan_for(loaded, nodes), nodes)
    profiles = [read_profile(Path(path)) for path in loaded.cluster.profiles]
    models = {
        model.name: SimModel(
            model.facts.shape, cost_for(node.gpu, spec.models[0].shape.itemsize, profiles)
        )
        for model in loaded.models
    }
    return spec, SimUnit(spec, models)


def simulated(unit: SimUnit, case: Case) -> list[Part]:
    """What the simulator says of each stretch."""
    asked, begins_s = in_a_row(case)
    spans: list[JobSpan] = []
    found = simulate([unit], asked, on_job=spans.append)
    return parts_of(found.records, simulated_jobs(spans), begins_s)


def capacity_per_s(setup: Setup, unit: SimUnit, seed: int) -> float:
    """Requests/s by the simulator where all come at once, without the beginning and the end."""
    asked = [replace(each, time_s=0.0) for each in arrivals(setup, 1.0, _NUM_FOR_CAPACITY, seed)]
    ends_s = simulate([unit], asked).records.rows["last_token_s"]
    first, last = len(ends_s) // 10, len(ends_s) - len(ends_s) // 10
    ends_s.sort()
    return float((last - first) / (ends_s[last - 1] - ends_s[first]))


@dataclass(frozen=True, slots=True)
class Try:
    """A stretch that was served once, and what may have disturbed it."""

    served: Served  # in the time of the profile's machine
    slowness: float  # of this machine, over that beside the profile
    drift: float  # of this machine's speed from before the stretch to after it

    @property
    def is_quiet(self) -> bool:
        return (self.served.others or 0.0) <= _MOST_OTHERS and self.drift <= MOST_DRIFT


def tries_of(
    session: Session,
    asked: Sequence[Arrival],
    before: MachineSpeed,
    profile: Profiled,
) -> tuple[list[Try], MachineSpeed]:
    """Serve a stretch until a try was not disturbed, or often enough.

    before: the machine's speed now. Returns the tries and the speed after them.
    """
    tries: list[Try] = []
    while len(tries) < MOST_TRIES:
        served = session.serve(asked, before.slowness(profile.speed))
        after = profile.probe.now(is_quick=True)
        slowness = (before.slowness(profile.speed) + after.slowness(profile.speed)) / 2
        tries.append(Try(served.at(slowness), slowness, after.drift_from(before)))
        before = after
        if tries[-1].is_quiet:
            break
    return tries, before


def served(spec: UnitSpec, case: Case, seed: int, profile: Profiled) -> list[list[Try]]:
    """Serve a case, and return the tries of each stretch."""
    found = []
    with Session(spec, seed) as session:
        session.serve(case.warm_up)
        settle()
        speed = profile.probe.now(is_quick=True)
        for stretch in case.stretches:
            tries, speed = tries_of(session, stretch, speed, profile)
            found.append(tries)
    return found


def cases(
    folder: Path,
    setup: Setup,
    profile: Profiled,
    loads: Sequence[float],
    count: int,
    seed: int,
) -> Iterator[tuple[dict[str, Any], Side, Side]]:
    """A unit at all loads: the row of the record, then what was measured and simulated.

    A case of which no stretch was quiet is compared as it is.
    """
    spec, unit = units_of(write_config(folder, setup, _RATE_PER_S, profile.files))
    capacity = capacity_per_s(setup, unit, seed)
    for load in loads:
        case = case_of(setup, capacity, load, count, seed)
        begun_s = time.monotonic()
        expected = simulated(unit, case)
        simulated_s = time.monotonic() - begun_s
        stretches = served(spec, case, seed, profile)
        quiet = [place for place, tries in enumerate(stretches) if tries[-1].is_quiet]
        counted = quiet or range(len(stretches))
        lasts = [stretches[place][-1].served for place in counted]
        measured = side_of([Part(each.records, each.jobs) for each in lasts])
        foretold = side_of([expected[place] for place in counted])
        row = {
            "case": f"{setup.name} at {load}",
            "models": setup.models,
            "lane": spec.scheduler.lane,
            "packing": spec.scheduler.packing,
            "load": load,
            "capacity_per_s": round(capacity, 2),
            "requests": len(measured.ttft_s),
            "quiet_stretches": len(quiet),
            "simulated_in_s": round(simulated_s, 2),
            "sent_late_p99_ms": round(1e3 * max(each.late_s for each in lasts), 2),
            "stretches": [[_row_of_try(each) for each in tries] for tries in stretches],
        }
        yield row | row_of(measured, foretold), measured, foretold


def _row_of_try(found: Try) -> dict[str, float | None]:
    return {
        "others": _rounded(found.served.others),
        "slowness": round(found.slowness, 3),
        "drift": round(found.drift, 3),
    }


def _rounded(part: float | None) -> float | None:
    return None if part is None else round(part, 4)


def main() -> None:
    """Profile, then simulate and serve case by case; publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=int, metavar="N", help="of a case (1500; 200)")
    parser.add_argument("--only", metavar="TEXT", default="", help="setups whose name has it")
    parser.add_argument("--loads", type=float, nargs="+", help="of capacity")
    parser.add_argument("--profiles", type=Path, nargs="+", help="instead of measuring")
    bench = Bench(parser)
    options, quick = bench.options, bench.options.quick
    setups = [each for each in (QUICK if quick else SETUPS) if options.only in each.name]
    loads = options.loads or (QUICK_LOADS if quick else LOADS)
    count = options.requests or (200 if quick else 1500)
    rows: list[dict[str, Any]] = []
    samples: dict[str, list[float]] = {}
    threads = os.cpu_count() or 1
    with (
        tempfile.TemporaryDirectory(prefix="bench-fidelity-") as name,
        SpeedProbe(threads) as probe,
    ):
        folder = Path(name)
        write_models(folder)
        names = tuple(dict.fromkeys(model for setup in setups for model in setup.models))
        config = write_config(folder, Setup(names, "mixed", "priority"), _RATE_PER_S, ())
        grids, repeats = (QUICK_GRIDS, 3) if quick else (GRIDS, 5)
        if options.profiles:
            files = [path.resolve() for path in options.profiles]
            profile = Profiled(files, probe.now(), probe)
        else:
            profile = profiled(probe, folder, config, names, grids, repeats)
        for setup in setups:
            for row, *sides in cases(folder, setup, profile, loads, count, options.seed):
                rows.append(row)
                samples |= samples_of(row["case"], *sides)
                print(row["case"], row["errors"], flush=True)
                bench.save(claims_of(rows), samples, cases=rows)
    bench.publish(
        claims_of(rows),
        samples,
        models=SHAPES,
        cases=rows,
        profiled_at=asdict(profile.speed),
        profile_drifts=profile.drifts,
    )


if __name__ == "__main__":
    main()
