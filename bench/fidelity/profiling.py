"""Profiles of this machine for `bench/engine_fidelity.py`, at one speed although it drifts."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.fidelity.speed import MachineSpeed, SpeedProbe
from bench.harness import ROOT

MOST_DRIFT = 0.10  # of the seconds of fixed work, from before a measurement to after it
MOST_TRIES = 3


@dataclass(frozen=True, slots=True)
class Grid:
    """Jobs that `muxcluster profile` times in one run of some ten seconds."""

    batches: str
    lengths: str
    has_pairs: bool = False  # jobs side by side, too


@dataclass(frozen=True, slots=True)
class Profiled:
    """Measurements of this machine."""

    files: Sequence[Path]
    speed: MachineSpeed  # at which all of their seconds are
    probe: SpeedProbe  # tells the speed at any later time
    drifts: Sequence[float] = ()  # while each file was made


def profiled(
    probe: SpeedProbe, folder: Path, config: Path, grids: Sequence[Grid], repeats: int
) -> Profiled:
    """Measure this machine with the models of `config`, grid by grid.

    A grid over which the machine's speed moved is measured again, a few times at most, and the try
    of the least drift counts. Its seconds are stated at the speed beside the first grid.
    """
    files, drifts = [], []
    common: MachineSpeed | None = None
    for number, grid in enumerate(grids):
        path = folder / f"profile-{number}.json"
        content, speed, drift = min(
            _tries(probe, path, config, grid, repeats), key=lambda each: each[2]
        )
        common = common or speed
        path.write_text(json.dumps(_stretched(content, 1 / speed.slowness(common))))
        print(f"profile: {grid}, at {speed}, drift {drift:.3f}", flush=True)
        files.append(path)
        drifts.append(round(drift, 3))
    assert common is not None
    return Profiled(files, common, probe, drifts)


def _tries(
    probe: SpeedProbe, path: Path, config: Path, grid: Grid, repeats: int
) -> list[tuple[dict[str, Any], MachineSpeed, float]]:
    """A profile, the mean speed beside it and the drift; the last one if none was steady."""
    found = []
    before = probe.now()
    while len(found) < MOST_TRIES:
        command = (sys.executable, "-m", "muxcluster.cli.main", "profile", str(config))
        command += ("--out", str(path), "--batches", grid.batches, "--lengths", grid.lengths)
        command += ("--repeats", str(repeats), *(() if grid.has_pairs else ("--alone",)))
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        after = probe.now()
        drift = after.drift_from(before)
        found.append((json.loads(path.read_text()), before.mean(after), drift))
        if drift <= MOST_DRIFT:
            break
        before = after
    return found


def _stretched(content: Any, factor: float) -> Any:
    """A profile's content with all measured seconds times `factor`."""
    if isinstance(content, dict):
        return {
            key: [each * factor for each in value]
            if key in ("seconds", "alone", "beside")
            else _stretched(value, factor)
            for key, value in content.items()
        }
    return [_stretched(each, factor) for each in content] if isinstance(content, list) else content
