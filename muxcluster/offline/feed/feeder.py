"""A planned batch job that hands out its requests while it runs, as memory comes free.

Memory-centric batching (BatchLLM Alg. 2): a batch is not bounded by a number of requests, but by
the KV that open requests are expected to hold (the threshold) and by the prompt tokens that wait to
be computed (a few chunks). So the unit's queue is short, and what comes next is decided late.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.blend.lengths import (
    OutputLengths,
    estimate_lengths,
    known_lengths,
    sample_places,
)
from muxcluster.offline.blend.scan import DualScanner, End, Line, Taken
from muxcluster.offline.feed.held_memory import HeldMemory, WorkingSetForecast
from muxcluster.offline.feed.lines import (
    is_planned,
    keeps_families,
    plan_line,
    replanned,
    sample_line,
)
from muxcluster.offline.feed.prefixes import LivePrefixes
from muxcluster.offline.order.orders import OfflineJob
from muxcluster.offline.prefix.tree import PrefixTree

_CHUNKS_AHEAD = 2  # of prompts waiting in the unit: one job runs, the next is built before `take`
# Chunks of KV that the compute-bound end may hold in any case: those that wait and some that
# decode; otherwise prefill would starve beside a few very long requests.
_CHUNKS_UNDER_WAY = 6
_SLOW_SHARE = 0.1  # of a sample, not waited for; these count with their tokens so far
# Until an answer of their kind is known, plan for requests that share nothing up to 1 + 4 times
# their estimate (bench/offline/blendserve.py).
_UNSEEN_LENGTH_FACTOR = 4.0
_PRIOR_WEIGHT = 2.0  # the mean of the level above counts as two further results
_LEAST_RESULTS, _MORE_RESULTS = 32, 1.25  # renew plans after 32 results, then at 1.25 times as many


class Room(NamedTuple):
    """A unit's memory at `now` (seconds, never going back)."""

    now: float
    size_bytes: float  # that batch requests of the model may hold if alone: the pool or its quota
    other_bytes: float  # of these, held by all other requests
    chunk_tokens: int  # most prompt tokens of one of the unit's jobs


class Pin(NamedTuple):
    """Keep the first `num_tokens` of a prompt in the KV cache until `pin_id` is freed."""

    pin_id: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Fed:
    """A request to submit."""

    number: int  # of its prompt
    pins: tuple[Pin, ...]  # to set before


@dataclass(frozen=True, slots=True, eq=False)
class Renewed:
    """A plan made with the results so far."""

    outputs: OutputLengths
    line: Line | None  # None for an order that does not depend on lengths


@dataclass(frozen=True, slots=True, eq=False)
class Renewal:
    """A plan to be made again; it holds all that this needs, so any thread may do it."""

    job: OfflineJob
    order: str
    known: NDArray[np.float64]  # float64 [n] by place, NaN where not known
    so_far: NDArray[np.float64]  # float64 [n] by place, output tokens of running requests

    def run(self) -> Renewed:
        """Estimate lengths and plan; about 0.1 s for 8,192 requests in the order `blend`."""
        outputs = _estimated(self.job.tree, self.known, self.so_far)
        if not is_planned(self.order):
            return Renewed(outputs, None)
        return Renewed(outputs, plan_line(replace(self.job, outputs=outputs), self.order))


class BatchFeeder:
    """Sans-IO feeder of one job: tell it the room and what ended, take the requests to submit.

    Each request is handed out once, unless it is put back. Engine and simulator drive the same
    object. Where output lengths are not known, a sample is handed out first and the order follows
    from its results; later results refine it (BlendServe §5.3).
    """

    def __init__(
        self,
        job: OfflineJob,
        order: str,
        known: NDArray[np.float64] | None = None,
        *,
        renews_itself: bool = True,
    ) -> None:
        """order: a name of `order.orders`. known: float64 [n] by place, output tokens of each
        request, NaN where not known; until there are results the job's `outputs` are assumed.
        None: the job's `outputs` are the true lengths. renews_itself: plans are renewed inside
        `take`; else the caller runs what `renewal` returns.

        Raises ValueError for an unknown order.
        """
        self._job = job
        self._order = order
        self._known = job.outputs.mean.copy() if known is None else known.copy()
        self._num_results = 0
        self._numbers = job.tree.order.tolist()
        self._is_out = np.zeros(len(self._numbers), dtype=np.bool_)
        self._is_over = np.zeros(len(self._numbers), dtype=np.bool_)
        self.memory_s_left = 0.0  # expected memory seconds of requests that have not ended
        self._prefixes = LivePrefixes(job.tree)
        self._pins = keeps_families(order)
        self._depth = job.tree.depth.tolist()
        self._open: dict[int, int] = {}
        self._held = HeldMemory(job.tree, self._prefixes, job.model.kv_bytes)
        self._returned: deque[tuple[int, Taken]] = deque()
        self._forecast = WorkingSetForecast()
        self._sample: set[int] = set()
        self._least = 0.0
        self._renews_itself = renews_itself
        self._is_renewing = False
        self._begin()

    def _begin(self) -> None:
        has_known = not bool(np.isnan(self._known).all())
        if has_known and np.isnan(self._known).any():
            so_far = np.zeros(len(self._known))
            outputs = _estimated(self._job.tree, self._known, so_far)
            self._job = replace(self._job, outputs=outputs)
        line = plan_line(self._job, self._order)
        if not has_known and is_planned(self._order):
            sample = sample_places(self._job.tree, np.random.default_rng(self._job.seed))
            self._sample = set(sample.tolist())
            line = sample_line(self._job, sample)
        self._num_slow = self._num_not_waited_for()
        self._renew_after = 1.0 if self._sample else float(_LEAST_RESULTS)
        self._scanner = DualScanner(line, is_ramping=not self._sample)
        self._set_own()

    def __len__(self) -> int:
        """Return the number of requests to hand out, those put back included."""
        return len(self._scanner) + len(self._returned)

    @property
    def num_open(self) -> int:
        """Return the number of requests handed out that have not ended."""
        return len(self._open)

    @property
    def open_bytes(self) -> float:
        """Return about how much KV the open requests hold, what they share counted once."""
        return self._held.compute_bytes + self._held.memory_bytes

    @property
    def kv_bytes(self) -> int:
        """Return the KV bytes of one token."""
        return self._job.model.kv_bytes

    @property
    def pinned(self) -> frozenset[int]:
        """Return the pins set and not freed, which a caller that gives up the job must free."""
        return self._prefixes.needed

    def take(self, room: Room) -> list[Fed]:
        """Return the requests to submit now, in this order.

        Together with open ones and idle pins they are expected to hold, except for the last one, no
        more than `room` has beside what interactive requests held lately. One may always run if it
        is alone in the unit.
        """
        expected = self._forecast.expect(room.now, room.other_bytes)
        size = room.size_bytes - expected
        self._least = _CHUNKS_UNDER_WAY * room.chunk_tokens * self._job.model.kv_bytes
        self._held.advance(room.now)
        if self._renews_itself and (renewal := self.renewal()) is not None:
            self.renewed(renewal.run())
        size = max(0.0, size - self._prefixes.idle_tokens * self._job.model.kv_bytes)
        fed: list[Fed] = []
        while self._held.backlog < _CHUNKS_AHEAD * room.chunk_tokens:
            is_alone = not self._open and room.other_bytes == 0
            found = self._next(size, is_alone=is_alone)
            if found is None:
                break
            fed.append(found)
        return fed

    def started(self, number: int) -> None:
        """Note that an open request got its first token. Raises KeyError if it is not open."""
        self._held.started(self._open[number])

    def ended(self, number: int, output_tokens: int | None) -> tuple[int, ...]:
        """Note that an open request is over; return the ids of pins to free.

        output_tokens: None where it says nothing about lengths (refused, aborted). Raises KeyError
        if the request is not open.
        """
        place = self._open.pop(number)
        if output_tokens is None:
            self._held.withdraw(place)
        else:
            self._held.ended(place, output_tokens)
        freed = tuple(self._prefixes.free(place)) if self._pins else ()
        self._sample.discard(place)
        self._is_over[place] = True
        self.memory_s_left = max(0.0, self.memory_s_left - float(self._memory_s[place]))
        if output_tokens is not None and np.isnan(self._known[place]):
            self._known[place] = max(1, output_tokens)
            self._num_results += 1
        return freed

    def put_back(self, number: int) -> None:
        """Hand an open request out again, as its unit was lost; its pins stay.

        Raises KeyError if it is not open.
        """
        place = self._open.pop(number)
        self._returned.append((number, Taken(place, self._held.withdraw(place))))

    def _next(self, size: float, *, is_alone: bool) -> Fed | None:
        if self.open_bytes >= size and not is_alone:
            return None
        if self._returned:
            number, again = self._returned.popleft()
            self._put(number, again)
            return Fed(number, ())
        held = self._held
        taken = self._scanner.take(held.compute_bytes, held.memory_peak, size, self._least)
        if taken is None and is_alone:
            taken = self._scanner.take(0.0, 0.0, 1.0)
        return None if taken is None else self._hand_out(taken)

    def _hand_out(self, taken: Taken) -> Fed:
        number = self._numbers[taken.place]
        self._is_out[taken.place] = True
        self._put(number, taken)
        # A sample touches prefixes of the whole job, which would fill the memory if pinned.
        pins = self._pins and taken.place not in self._sample
        nodes = self._prefixes.need(taken.place) if pins else []
        return Fed(number, tuple(Pin(node, self._depth[node]) for node in nodes))

    def _put(self, number: int, taken: Taken) -> None:
        self._open[number] = taken.place
        self._held.put(taken.place, taken.end)

    def _num_not_waited_for(self) -> int:
        """Return how many of the sample may be unfinished when a plan is made.

        Requests that share nothing may be few and very long; all others are in families.
        """
        count = len(self._sample)
        alone = np.count_nonzero(self._job.tree.leaf_node[list(self._sample)] == 0)
        return max(int(_SLOW_SHARE * count), min(count // 2, int(alone)))

    def renewal(self) -> Renewal | None:
        """Return the plan to make again, if there are enough results; without the slowest of a
        sample. Its result goes to `renewed`; until then None is returned."""
        if self._is_renewing:
            return None
        if len(self._sample) > self._num_slow or self._num_results < self._renew_after:
            return None
        self._is_renewing = True
        self._renew_after = max(
            self._num_results + _LEAST_RESULTS, self._num_results * _MORE_RESULTS
        )
        so_far = np.zeros(len(self._known))
        for place, tokens in self._held.output_tokens().items():
            so_far[place] = tokens
        return Renewal(self._job, self._order, self._known.copy(), so_far)

    def renewed(self, found: Renewed) -> None:
        """Go on by a renewed plan; requests handed out meanwhile stay where they are."""
        self._is_renewing = False
        self._job = replace(self._job, outputs=found.outputs)
        self._set_own()
        if found.line is not None:
            self._move(found.line)
            self._scanner = DualScanner(replanned(found.line, self._scanner, self._is_out))

    def _move(self, line: Line) -> None:
        """Count open requests for the end that they would be taken from now."""
        is_long = np.zeros(len(line), dtype=np.bool_)
        is_long[line.places] = line.density < line.target
        for place in self._open.values():
            self._held.move(place, End.MEMORY if is_long[place] else End.COMPUTE)

    def _set_own(self) -> None:
        outputs = self._job.outputs
        self._memory_s = self._job.leaf_work().memory_s
        self.memory_s_left = float(self._memory_s[~self._is_over].sum())
        self._held.expect(outputs, self._known, self._length_factors())

    def _length_factors(self) -> NDArray[np.float64]:
        """Return by what factor estimates may be too small, float64 [n].

        Only their own results tell about requests that share nothing, and all of these could start
        at once.
        """
        is_alone = self._job.tree.leaf_node == 0
        results = np.count_nonzero(is_alone & ~np.isnan(self._known))
        return np.where(is_alone, 1 + _UNSEEN_LENGTH_FACTOR / (1 + results) ** 0.75, 1.0)


def _estimated(
    tree: PrefixTree, known: NDArray[np.float64], so_far: NDArray[np.float64]
) -> OutputLengths:
    """Estimate output lengths; running requests count with their tokens so far."""
    if np.isnan(known).any():
        return estimate_lengths(tree, known, _PRIOR_WEIGHT, so_far)
    return known_lengths(known)
