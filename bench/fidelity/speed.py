"""How fast this machine is at the moment: one whose host serves others too drifts by the minute."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from bench.harness import ROOT
from muxcluster.engine.processes.owner_link import ONE_THREAD

_MODULE = "bench.fidelity.fixed_work"
_REPEATS = 25
_FEW_REPEATS = 11  # between stretches of a case
_END_S = 10.0


@dataclass(frozen=True, slots=True)
class MachineSpeed:
    """Seconds of fixed work, medians of a few repeats."""

    decode_s: float  # a forward of few rows: bound by memory and by what every operator costs
    prefill_s: float  # a forward of many tokens: bound by the processors

    def slowness(self, other: "MachineSpeed") -> float:
        """Return how many times as long work takes now as it took at `other`.

        The geometric mean of both kinds of work: most jobs are between the two.
        """
        both = self.decode_s / other.decode_s * self.prefill_s / other.prefill_s
        return float(both**0.5)

    def mean(self, other: "MachineSpeed") -> "MachineSpeed":
        """Return the mean of both."""
        return MachineSpeed(
            (self.decode_s + other.decode_s) / 2, (self.prefill_s + other.prefill_s) / 2
        )

    def drift_from(self, other: "MachineSpeed") -> float:
        """Return by how much the two differ, as a part of the faster one; 0: not at all."""
        pairs = (
            (self.decode_s, other.decode_s),
            (self.prefill_s, other.prefill_s),
        )
        return max(max(pair) / min(pair) - 1 for pair in pairs)


class SpeedProbe:
    """A process that runs fixed forwards when asked, and sleeps otherwise; a context manager.

    They are forwards of a model by the engine's own operators, on as many threads, in a process
    like a worker's: products of large matrices alone were measured to keep their pace within a
    tenth while jobs of the engine took 1.4 times as long as some minutes before.
    """

    def __init__(self, num_threads: int) -> None:
        """Start it and wait until its model is ready."""
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        self._process = subprocess.Popen(
            (sys.executable, "-m", _MODULE, str(num_threads)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": paths},
        )
        self._ask(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died, which was told
            self._process.stdin.close()  # it ends then
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def now(self, *, is_quick: bool = False) -> MachineSpeed:
        """Measure the speed; takes about two seconds in which nothing else of ours should run.

        is_quick: half of that. Raises RuntimeError if the process has died.
        """
        return self._ask(_FEW_REPEATS if is_quick else _REPEATS)

    def _ask(self, repeats: int) -> MachineSpeed:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(f"{repeats}\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise RuntimeError("the process that times fixed work has died") from error
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the process that times fixed work has died")
        return MachineSpeed(*json.loads(answer))
