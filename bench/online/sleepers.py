"""Two models of a unit with eight parked beside them, and without: tokens, and bytes of a sleeper.

Parts of bench/residency.py.
"""

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.online.parked import OUTPUT_TOKENS, PROMPT_TOKENS, TIMEOUT_S, bytes_of, unit_of
from bench.processes import TICKS_PER_S, cpu_seconds, descendants, settle
from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.residency import Residency
from muxcluster.core.sampling import SamplingParams
from muxcluster.engine.residency.executor import ResidencyExecutor
from muxcluster.engine.unit.unit import Unit


class Pace(NamedTuple):
    """Output tokens by time."""

    per_s: float
    per_cpu_s: float  # of all processes, so that other work on the machine matters little


class ClosedLoop:
    """Keeps `num_open` requests of each of some models open, and counts their tokens.

    `hear` is the unit's `on_output`; the next request is sent from there, on the unit's thread.
    """

    def __init__(self, names: Sequence[str], num_open: int) -> None:
        self._names = names
        self._num_open = num_open
        self._prompts = np.random.default_rng(0).integers(5, 500, (64, PROMPT_TOKENS), np.int32)
        self._num_sent = self._num_ended = self._num_tokens = self._most_sent = 0
        self._lock = threading.Lock()  # of the counts: the first requests come from another thread
        self._idle = threading.Event()
        self._unit: Unit | None = None

    def hear(self, deltas: Mapping[str, TokenDelta]) -> None:
        """New output."""
        with self._lock:
            self._count(deltas)

    def _count(self, deltas: Mapping[str, TokenDelta]) -> None:
        for name, delta in deltas.items():
            self._num_tokens += len(delta.tokens)
            if delta.finished is None:
                continue
            self._num_ended += 1
            if self._num_sent < self._most_sent:
                self._send(name.split("/")[0])
        if self._num_ended == self._num_sent:
            self._idle.set()

    def run(self, unit: Unit, num_requests: int) -> Pace:
        """The pace of so many requests: the same work each time, however slow the machine is."""
        self._unit, self._num_tokens = unit, 0
        self._most_sent = self._num_sent + num_requests
        self._idle.clear()
        before_s, start_s = sum(cpu_seconds(os.getpid()).values()), time.monotonic()
        with self._lock:
            for name in self._names * self._num_open:
                self._send(name)
        if not self._idle.wait(TIMEOUT_S):
            raise TimeoutError("requests never end")
        seconds = time.monotonic() - start_s
        used_s = sum(cpu_seconds(os.getpid()).values()) - before_s
        return Pace(self._num_tokens / seconds, self._num_tokens / max(used_s, 1 / TICKS_PER_S))

    def _send(self, name: str) -> None:
        assert self._unit is not None
        number, self._num_sent = self._num_sent, self._num_sent + 1
        sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=4 * OUTPUT_TOKENS)
        prompt = self._prompts[number % len(self._prompts)]
        self._unit.submit(Request(f"{name}/{number}", name, prompt, sampling))


@dataclass(frozen=True, slots=True)
class Sleepers:
    """What models cost others while they are parked."""

    paces: list[tuple[Pace, Pace]]  # of two models: without and with them, in pairs
    told_bytes: dict[str, int]  # what the unit says that it keeps of each, see `ModelStats`
    owner_bytes: float  # of the pool owner's memory for each, measured


def beside_sleepers(paths: Mapping[str, Path], num_pairs: int, num_requests: int) -> Sleepers:
    """Tokens of the first two models alone, and with all others parked beside; in pairs.

    Both units live all the time and run in turn, each first in every other pair: the speed of the
    machine changes from minute to minute, and both sides see the same of it.
    """
    names = list(paths)[:2]
    paces: list[tuple[Pace, Pace]] = []
    with _two(paths, names) as (alone, beside):
        for each in (alone, beside):
            each.loop.run(each.unit, num_requests)  # step times are learned, memory is touched
        settle()
        for number in range(num_pairs):
            order = [alone, beside] if number % 2 else [beside, alone]
            found = {each: each.loop.run(each.unit, num_requests) for each in order}
            paces.append((found[alone], found[beside]))
            print(f"tokens alone, beside sleepers: {paces[-1]}", flush=True)
        told = beside.unit.stats().models
        more = owner_bytes(beside.executor) - owner_bytes(alone.executor)
    sleeping = {each.name: each.parked_bytes for each in told if each.name not in names}
    return Sleepers(paces, sleeping, more / len(sleeping))


def owner_bytes(executor: ResidencyExecutor) -> int:
    """Memory of a unit's pool owner and its children without files, whose pages both units share;
    pages that processes share in parts."""
    return sum(_proportional_bytes(pid) for pid in descendants(executor.owner_pid))


def _proportional_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    lines = [each.split() for each in text.splitlines()]
    return sum(int(each[1]) * 1024 for each in lines if each[0] in ("Pss_Anon:", "Pss_Shmem:"))


class _Running(NamedTuple):
    unit: Unit
    loop: ClosedLoop
    executor: ResidencyExecutor


@contextmanager
def _two(paths: Mapping[str, Path], names: Sequence[str]) -> Iterator[list[_Running]]:
    made: list[_Running] = []
    room = sum(bytes_of(paths[name]) for name in names)
    try:
        for mine in ({name: paths[name] for name in names}, paths):
            spec = unit_of(mine, room)
            auto = tuple(
                replace(each, residency=Residency.AUTO, rate_per_s=1.0)
                if each.name in names
                else each
                for each in spec.models
            )
            spec = replace(spec, models=auto, num_blocks=unit_of(paths, room).num_blocks)
            loop = ClosedLoop(names, 8)
            executor = ResidencyExecutor(spec)
            unit = Unit(spec, loop.hear, executor=executor)
            made.append(_Running(unit, loop, executor))
            unit.start()
        yield made
    finally:
        for each in made:
            each.unit.close()
