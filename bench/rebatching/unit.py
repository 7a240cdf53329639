"""A unit of ours on the queries of bench/dense.py, in a process of its own.

Reads a line of JSON for each run from stdin and writes one to stdout; ends with its input.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from bench.processes import cpu_seconds
from muxcluster.cli.batch_local.units import local_specs
from muxcluster.config.load import load_config
from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.engine.unit.unit import Unit

TIMEOUT_S = 600.0


class Run:
    """Keeps `batch` of the task's queries open until all have ended."""

    def __init__(self, number: int, model: str, task: Mapping[str, Any]) -> None:
        self._number = number
        self._model = model
        self._task = task
        self._num_sent = 0
        self._done = threading.Event()
        self._start_s = time.perf_counter()
        self.tokens: list[list[int]] = [[] for _ in task["prompts"]]
        self.ended_s: list[float] = []

    def hear(self, unit: Unit, deltas: Mapping[str, TokenDelta]) -> None:
        """New output, on the unit's thread; the next query is sent from there."""
        for request_id, delta in deltas.items():
            self.tokens[int(request_id.rpartition("-")[2])] += delta.tokens
            if delta.finished is not None:
                self.ended_s.append(time.perf_counter() - self._start_s)
                self._send(unit)
        if len(self.ended_s) == len(self.tokens):
            self._done.set()

    def answer(self, unit: Unit) -> dict[str, Any]:
        """Runs it. Raises RuntimeError where any answer is not whole."""
        before_s = sum(cpu_seconds(os.getpid()).values())
        self._start_s = time.perf_counter()
        for _ in range(self._task["batch"]):
            self._send(unit)
        is_done = self._done.wait(TIMEOUT_S)
        if not is_done or [len(each) for each in self.tokens] != self._task["num_tokens"]:
            raise RuntimeError(f"{len(self.ended_s)} of {len(self.tokens)} queries have ended")
        used_s = sum(cpu_seconds(os.getpid()).values()) - before_s
        return {"tokens": self.tokens, "ended_s": self.ended_s, "cpu_s": used_s}

    def _send(self, unit: Unit) -> None:
        if self._num_sent == len(self.tokens):
            return
        index, self._num_sent = self._num_sent, self._num_sent + 1
        sampling = SamplingParams(
            temperature=0.0, ignore_eos=True, max_tokens=self._task["num_tokens"][index]
        )
        prompt = np.array(self._task["prompts"][index], dtype=np.int32)
        request_id = f"{self._number}-{index}"
        # queries come again in later runs, and no other method here remembers prompts
        unit.submit(Request(request_id, self._model, prompt, sampling, cacheable=False))


def main() -> None:
    """Runs until stdin ends. The one argument: a configuration of one model."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what child processes print is no part of the answer
    (spec,) = local_specs(load_config(Path(sys.argv[1])))
    runs: list[Run] = []
    unit = Unit(spec, lambda deltas: runs[-1].hear(unit, deltas))
    unit.start()
    try:
        for number, line in enumerate(sys.stdin):
            runs.append(Run(number, spec.models[0].name, json.loads(line)))
            print(json.dumps(runs[-1].answer(unit)), file=out, flush=True)
    finally:
        unit.close()


if __name__ == "__main__":
    main()
