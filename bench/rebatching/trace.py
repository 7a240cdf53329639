"""Trace of a method of bench/dense.py while it runs."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from muxcluster.engine.dense.forward import CACHE_NAMES, Foreign


@dataclass(slots=True)
class Work:
    """Of all forwards: computed_tokens with padding, rows × width."""

    forwards: int = 0
    computed_tokens: int = 0
    read_slots: int = 0  # rows × columns that attention looks at, padding included


@contextmanager
def watched(model: Foreign) -> Iterator[Work]:
    """Counts the forwards of one of transformers' attention models, whoever calls it."""
    work = Work()

    def note(_: Foreign, __: tuple[()], inputs: Mapping[str, Any]) -> None:
        rows, width = inputs["input_ids"].shape
        work.forwards += 1
        work.computed_tokens += rows * width
        # `generate` gives no mask where it hides nothing
        caches = (inputs[name] for name in CACHE_NAMES if inputs.get(name) is not None)
        cached = next((cache.get_seq_length() for cache in caches), 0)
        work.read_slots += rows * (cached + width)

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield work
    finally:
        hook.remove()


class Trace:
    """Output tokens by query, and the course of completed queries and of cache memory."""

    def __init__(self, num_queries: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(num_queries)]
        self.ended_s: list[float] = []
        self.memory: list[tuple[float, int]] = []
        """(seconds, bytes) after each step."""
        self._start_s = time.perf_counter()

    @property
    def now_s(self) -> float:
        """Since the run began."""
        return time.perf_counter() - self._start_s

    def end(self, count: int) -> None:
        """So many queries are complete and their answers out."""
        self.ended_s += [self.now_s] * count

    def hold(self, num_bytes: int) -> None:
        """What the cache takes."""
        self.memory.append((self.now_s, num_bytes))

    @property
    def peak_bytes(self) -> int:
        """The most that the cache took."""
        return max((held for _, held in self.memory), default=0)

    @property
    def mean_bytes(self) -> float:
        """Of the cache, over the time of the run."""
        course = [(0.0, 0), *self.memory]
        held = sum(before[1] * (after[0] - before[0]) for before, after in pairwise(course))
        return held / course[-1][0]


def thinned(course: Sequence[tuple[float, int]], count: int = 120) -> list[tuple[float, int]]:
    """At most so many points, the highest of each stretch: peaks stay."""
    stretch = -(-len(course) // count)
    return [
        max(course[first : first + stretch], key=lambda point: point[1])
        for first in range(0, len(course), stretch or 1)
    ]
