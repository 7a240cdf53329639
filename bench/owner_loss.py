"""Stall of streams after the memory owner of a CPU unit is killed (`kill -9`), and its causes.

A Llama of 56.4 million parameters (bench/serving.py) with 64 greedy streams in one unit: once each
has 20 tokens, the owner is killed. Twice: right after the start, when its replacement must import
everything first, and with the spare owner that a unit makes in quiet times. A stream's stall is its
longest time between two tokens from the kill on. The tokens must be those of an undisturbed run,
but where two logits are nearly equal (packed linears differ in the last bits with the size of a
batch).
"""

import logging
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from bench.harness import Bench, Claim, make_parser
from bench.serving import NAME, make_model, write_config
from muxcluster.cli.batch_local.units import local_specs
from muxcluster.config.load import load_config
from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.processes.executor import ProcessExecutor
from muxcluster.engine.unit.unit import Unit

NUM_STREAMS, QUICK_STREAMS = 64, 8
PROMPT_TOKENS = 80
NUM_TOKENS = 120
TOKENS_BEFORE = 20
TIMEOUT_S = 300.0
_READY = re.compile(
    r"ready after (?P<total>[0-9.]+) s: (?P<start>[0-9.]+) s .* (?P<load>[0-9.]+) s loading"
)


class Streams:
    """What streams got, and when."""

    def __init__(self, count: int) -> None:
        self.tokens: dict[str, list[int]] = {f"r{i}": [] for i in range(count)}
        self.stall_s: dict[str, float] = {}
        self._latest_s: dict[str, float] = {}
        self._is_killed = False
        self._ended: set[str] = set()
        self._changed = threading.Condition()

    def hear(self, deltas: Mapping[str, TokenDelta]) -> None:
        """On the unit's thread."""
        now = time.monotonic()
        with self._changed:
            for name, delta in deltas.items():
                self.tokens[name].extend(delta.tokens)
                if delta.tokens and self._is_killed:
                    stall_s = now - self._latest_s[name]
                    self.stall_s[name] = max(stall_s, self.stall_s.get(name, 0.0))
                if delta.tokens:
                    self._latest_s[name] = now
                if delta.finished is not None:
                    self._ended.add(name)
            self._changed.notify_all()

    def kill(self, pid: int) -> None:
        """SIGKILL, once every stream has some tokens and none of their ends is near."""
        with self._changed:
            self._wait(lambda: min(map(len, self.tokens.values())) >= TOKENS_BEFORE)
            os.kill(pid, signal.SIGKILL)
            self._is_killed = True

    def wait(self) -> None:
        """Until all have ended."""
        with self._changed:
            self._wait(lambda: len(self._ended) == len(self.tokens))

    def _wait(self, is_so: Any) -> None:
        if not self._changed.wait_for(is_so, TIMEOUT_S):
            raise TimeoutError(f"the streams did not get there within {TIMEOUT_S:g} s")


class Restart(logging.Handler):
    """The unit's own words about how long its processes took."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[dict[str, float]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what is about seconds."""
        if found := _READY.search(record.getMessage()):
            self.seconds.append({name: float(text) for name, text in found.groupdict().items()})


@contextmanager
def running(
    spec: UnitSpec, streams: Streams, *, has_spare: bool
) -> Iterator[tuple[Unit, ProcessExecutor]]:
    """A unit that serves; has_spare: with a spare owner that has imported everything."""
    executor = ProcessExecutor(spec)
    unit = Unit(spec, streams.hear, executor=executor)
    unit.start()
    try:
        if has_spare:
            executor.prepare()
            while "mux-owner-idle" not in child_names():
                time.sleep(0.1)
        yield unit, executor
    finally:
        unit.close()


def child_names() -> list[str]:
    """Names of the processes that are children of this one."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = stat.read_text().rpartition(")")
        except OSError:
            continue
        if int(tail.split()[1]) == os.getpid():
            found.append(head.partition("(")[2])
    return found


def run(spec: UnitSpec, count: int, seed: int, *, kills: bool, has_spare: bool) -> Streams:
    """All streams to their ends, with a kill on the way or without."""
    streams = Streams(count)
    rng = np.random.default_rng(seed)
    sampling = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with running(spec, streams, has_spare=has_spare) as (unit, executor):
        for name in streams.tokens:
            prompt = rng.integers(3, spec.models[0].vocab_size, PROMPT_TOKENS, dtype=np.int32)
            unit.submit(Request(name, NAME, prompt, sampling))
        if kills:
            streams.kill(executor.owner_pid)
        streams.wait()
    return streams


def main() -> None:
    """Run undisturbed, then with both kills; print and publish."""
    bench = Bench(make_parser(__doc__))
    options = bench.options
    count = QUICK_STREAMS if options.quick else NUM_STREAMS
    restart = Restart()
    log = logging.getLogger("muxcluster.engine.processes.executor")
    log.setLevel(logging.INFO)
    log.addHandler(restart)
    with tempfile.TemporaryDirectory(prefix="bench-owner-") as folder:
        config = write_config(make_model(Path(folder)), NUM_TOKENS, "float32")
        (spec,) = local_specs(load_config(config))
        whole = run(spec, count, options.seed, kills=False, has_spare=False)
        rows: list[dict[str, Any]] = []
        samples = {}
        for name, has_spare in (("without a spare", False), ("with a spare", True)):
            found = run(spec, count, options.seed, kills=True, has_spare=has_spare)
            stalls = sorted(found.stall_s.values())
            same = sum(found.tokens[each] == whole.tokens[each] for each in whole.tokens)
            row = {"case": name, "processes_s": restart.seconds[-1], "equal_answers": same}
            rows.append({**row, "first_s": round(stalls[0], 2), "last_s": round(stalls[-1], 2)})
            samples[name] = stalls
            print(rows[-1], flush=True)
    claims = [
        Claim("stall_s_p50", round(float(np.median(samples["with a spare"])), 2), "s"),
        Claim(
            "stall_s_p50_without_a_spare",
            round(float(np.median(samples["without a spare"])), 2),
            "s",
        ),
        Claim("longest_stall_s", rows[-1]["last_s"], "s", rows[0]["last_s"]),
    ]
    bench.publish(claims, samples, num_streams=count, rows=rows)


if __name__ == "__main__":
    main()
