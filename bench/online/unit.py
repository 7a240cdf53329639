"""Our side of bench/serving.py without HTTP: a unit driven in this process, as OpenVINO's is.

Reads one JSON object from stdin, writes one to stdout. The unit is the one that `muxcluster serve`
would start for the same configuration, with its worker processes.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from bench.processes import cpu_seconds, settle
from muxcluster.cli.batch_local.units import local_specs
from muxcluster.config.load import load_config
from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.engine.unit.unit import Unit

TIMEOUT_S = 600.0


class ClosedLoop:
    """Keeps `concurrency` requests of `num_tokens` output tokens open until all have ended.

    `hear` is the unit's `on_output`; the next request is sent from there, on the unit's thread.
    """

    def __init__(self, name: str, case: Mapping[str, Any]) -> None:
        self.tokens: list[list[int]] = [[] for _ in case["prompts"]]
        self._name = name
        self._case = case
        self._num_sent = 0
        self._num_ended = 0
        self._done = threading.Event()

    def hear(self, unit: Unit, deltas: Mapping[str, TokenDelta]) -> None:
        """New output."""
        for request_id, delta in deltas.items():
            self.tokens[int(request_id.rpartition("-")[2])] += delta.tokens
            if delta.finished is not None:
                self._num_ended += 1
                self._send(unit)
        if self._num_ended == len(self.tokens):
            self._done.set()

    def run(self, unit: Unit) -> float:
        """Seconds until the last token. Raises RuntimeError where any answer is not whole."""
        start_s = time.perf_counter()
        for _ in range(min(self._case["concurrency"], len(self.tokens))):
            self._send(unit)
        is_done = self._done.wait(TIMEOUT_S)
        seconds = time.perf_counter() - start_s
        if not is_done or any(len(row) != self._case["num_tokens"] for row in self.tokens):
            raise RuntimeError(f"answers of {sorted(set(map(len, self.tokens)))} tokens")
        return seconds

    def _send(self, unit: Unit) -> None:
        if self._num_sent == len(self.tokens):
            return
        number, self._num_sent = self._num_sent, self._num_sent + 1
        sampling = SamplingParams(
            temperature=0.0, ignore_eos=True, max_tokens=self._case["num_tokens"]
        )
        prompt = np.array(self._case["prompts"][number], dtype=np.int32)
        adapters = self._case.get("adapters")  # one a request; none at all where it is absent
        adapter = adapters[number] if adapters else ""
        request_id = f"{self._name}-{number}"
        unit.submit(Request(request_id, self._case["model"], prompt, sampling, adapter=adapter))


def warm_up(case: Mapping[str, Any]) -> dict[str, Any]:
    """`case` cut short, its prompts turned round, lest they be found in the prefix cache later."""
    return {**case, "num_tokens": 4, "prompts": [prompt[::-1] for prompt in case["prompts"]]}


def measure(config: Path, cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each case alone, after a short one of other prompts that is not measured."""
    (spec,) = local_specs(load_config(config))
    model = spec.models[0].name
    loops = [
        ClosedLoop(str(number), {**case, "model": model})
        for number, case in enumerate([warm_up(cases[-1]), *cases])
    ]
    now = loops[0]
    unit = Unit(spec, lambda deltas: now.hear(unit, deltas))
    unit.start()
    settle()
    found = []
    try:
        for loop in loops:
            now, before_s = loop, sum(cpu_seconds(os.getpid()).values())
            seconds = loop.run(unit)
            used_s = sum(cpu_seconds(os.getpid()).values()) - before_s
            num_tokens = sum(map(len, loop.tokens))
            found.append(
                {
                    "tokens_per_s": round(num_tokens / seconds, 1),
                    "cpu_s_per_1000_tokens": round(1000 * used_s / num_tokens, 3),
                    "tokens": loop.tokens,
                }
            )
    finally:
        unit.close()
    return found[1:]


def main() -> None:
    """Every case of the task."""
    task = json.load(sys.stdin)
    out = os.dup(1)
    os.dup2(2, 1)  # what child processes print is no part of the answer
    found = measure(Path(task["path"]), task["cases"])
    with os.fdopen(out, "w") as answer:
        json.dump({"cases": found}, answer)


if __name__ == "__main__":
    main()
