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
    """Jobs that `muxcluster profile` times in one run: of one model, or side by side of all."""

    batches: str
    lengths: str
    is_pairs: bool = False


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of `muxcluster profile`."""

    config: Path
    out: Path
    grid: Grid
    repeats: int
    models: Sequence[str]

    def content(self) -> dict[str, Any]:
        """Run it. Of side by side jobs only the pairs are kept: both of a pair were timed in turn,
        while the machine's speed may change over the minutes that all of them take."""
        grid = self.grid
        command = (sys.executable, "-m", "muxcluster.cli.main", "profile", str(self.config))
        command += ("--out", str(self.out), "--models", ",".join(self.models))
        command += ("--batches", grid.batches, "--lengths", grid.lengths)
        command += ("--repeats", str(self.repeats), *(() if grid.is_pairs else ("--alone",)))
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        content: dict[str, Any] = json.loads(self.out.read_text())
        if grid.is_pairs:
            for model in content["models"]:
                model |= {"cells": [], "mixed": [], "turns": []}
        return content


@dataclass(frozen=True, slots=True)
class Profiled:
    """Measurements of this machine."""

    files: Sequence[Path]
    speed: MachineSpeed  # at which all of their seconds are
    probe: SpeedProbe  # tells the speed at any later time
    drifts: Sequence[float] = ()  # while each file was made


def profiled(
    probe: SpeedProbe,
    folder: Path,
    config: Path,
    names: Sequence[str],
    grids: Sequence[Grid],
    repeats: int,
) -> Profiled:
    """Measure this machine with the models `names` of `config`, grid by grid and model by model.

    A run over which the machine's speed moved is done again, a few times at most, and the try of
    the least drift counts. Its seconds are stated at the speed beside the first run.
    """
    files, drifts = [], []
    common: MachineSpeed | None = None
    wanted = [
        (grid, models)
        for grid in grids
        for models in ([list(names)] if grid.is_pairs else [[name] for name in names])
    ]
    for number, (grid, models) in enumerate(wanted):
        run = _Run(config, folder / f"profile-{number}.json", grid, repeats, models)
        content, speed, drift = min(_tries(probe, run), key=lambda each: each[2])
        common = common or speed
        run.out.write_text(json.dumps(_stretched(content, 1 / speed.slowness(common))))
        print(f"profile: {models}, {grid}, at {speed}, drift {drift:.3f}", flush=True)
        files.append(run.out)
        drifts.append(round(drift, 3))
    assert common is not None
    return Profiled(files, common, probe, drifts)


def _tries(probe: SpeedProbe, run: _Run) -> list[tuple[dict[str, Any], MachineSpeed, float]]:
    """A profile, the mean speed beside it and the drift; the last one if none was steady."""
    found = []
    before = probe.now()
    while len(found) < (1 if run.grid.is_pairs else MOST_TRIES):
        content = run.content()
        after = probe.now()
        drift = after.drift_from(before)
        found.append((content, before.mean(after), drift))
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
