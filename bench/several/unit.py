"""Our side of bench/several_models.py and mixed_load.py: one unit, driven in this process.

Reads a line of JSON with the configuration, then one a play; answers each with a line: seconds of
the first and of the last token and the number of tokens of every request.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np

from bench.processes import settle
from bench.several.asks import TPOT_S, TTFT_S
from muxcluster.cli.batch_local.units import local_specs
from muxcluster.config.load import load_config
from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request, Slo
from muxcluster.core.sampling import SamplingParams
from muxcluster.engine.unit.unit import Unit

_TIMEOUT_S = 600.0
_SLO = Slo(TTFT_S, TPOT_S)


class Play:
    """Sends requests at their times, and notes when their tokens come."""

    def __init__(self, name: str, play: Mapping[str, Any]) -> None:
        self._name = name
        self._start_s: float = play["start_s"]
        self._asks: Sequence[Any] = play["asks"]
        self.rows: list[list[float]] = [[0.0, 0.0, 0] for _ in self._asks]
        self._num_open = len(self._asks)
        self._done = threading.Event()

    def hear(self, deltas: Mapping[str, TokenDelta]) -> None:
        """New output, on the unit's thread."""
        now_s = time.monotonic() - self._start_s
        for request_id, delta in deltas.items():
            row = self.rows[int(request_id.rpartition("-")[2])]
            if delta.tokens:
                row[0] = row[0] or now_s
                row[1] = now_s
                row[2] += len(delta.tokens)
            if delta.finished is not None or delta.rejected is not None:
                self._num_open -= 1
        if not self._num_open:
            self._done.set()

    def run(self, unit: Unit) -> None:
        """Return when all have ended. Raises TimeoutError."""
        for number, (at_s, model, prompt, num_tokens, adapter) in enumerate(self._asks):
            time.sleep(max(0.0, self._start_s + at_s - time.monotonic()))
            sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=num_tokens)
            tokens = np.array(prompt, dtype=np.int32)
            request = Request(f"{self._name}-{number}", model, tokens, sampling, slo=_SLO)
            unit.submit(replace(request, adapter=adapter))
        if self._asks and not self._done.wait(_TIMEOUT_S):
            raise TimeoutError(f"{self._num_open} requests have not ended")


def main(answers: TextIO) -> None:
    """Play until there is no more to play."""
    task = json.loads(sys.stdin.readline())
    (spec,) = local_specs(load_config(Path(task["config"])))
    now = Play("", {"start_s": 0.0, "asks": []})
    unit = Unit(spec, lambda deltas: now.hear(deltas))
    unit.start()
    try:
        settle()
        print("true", file=answers, flush=True)
        for number, line in enumerate(sys.stdin):
            now = Play(str(number), json.loads(line))
            now.run(unit)
            print(json.dumps(now.rows), file=answers, flush=True)
    finally:
        unit.close()


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as stream:
        os.dup2(2, 1)  # what child processes print is no answer
        main(stream)
