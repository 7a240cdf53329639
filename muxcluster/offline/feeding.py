"""A planned batch job that hands out its requests while it runs, as memory comes free.

Memory-centric batching (BatchLLM Alg. 2): no number of requests bounds a batch, but the KV that the
requests under way are expected to hold (the threshold) and the prompt tokens that wait to be
computed (a few chunks). So the unit's queue is short, and what comes next is decided late.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.blend.densities import leaf_work
from muxcluster.offline.blend.lengths import estimate_lengths, known_lengths, sample_places
from muxcluster.offline.blend.scan import DualScanner, End, Taken
from muxcluster.offline.feeding_forecast import WorkingSetForecast
from muxcluster.offline.feeding_lines import (
    is_planned,
    keeps_families,
    plan_line,
    replanned,
    sample_line,
)
from muxcluster.offline.feeding_prefixes import LivePrefixes
from muxcluster.offline.orders import OfflineJob

_CHUNKS_AHEAD = 2
"""Prompt tokens that wait, in chunks: one job runs and the next is made before we are asked."""
_PRIOR_WEIGHT = 2.0
"""A sub-tree's results are drawn towards those of the tree above as by so many further ones."""
_LEAST_RESULTS, _MORE_RESULTS = 32, 1.25
"""Plans are renewed after so many results, then whenever there are so many times as many."""


class Room(NamedTuple):
    """A unit's memory at `now` (seconds, never going back).

    size_bytes: what batch requests of the job's model might hold if nobody else were there: the
    pool, or the model's quota. other_bytes: what everybody else holds of it. chunk_tokens: most
    prompt tokens of one of the unit's jobs.
    """

    now: float
    size_bytes: float
    other_bytes: float
    chunk_tokens: int


class Pin(NamedTuple):
    """The first `num_tokens` of a request's prompt are to stay in the KV cache until `pin_id` is
    freed: others will need them."""

    pin_id: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Fed:
    """A request to submit: its prompt's number, and what to pin before that."""

    number: int
    pins: tuple[Pin, ...]


@dataclass(slots=True)
class _Open:
    """A request that was handed out. own_bytes: expected, over its life. backlog: prompt tokens
    that nobody has computed yet as far as we know."""

    taken: Taken
    own_bytes: int
    backlog: int


class BatchFeeder:
    """What of a job should be submitted now? Every request is handed out once, or put back.

    No clock and no thread; engine and simulator drive the same object. Where output lengths are
    not known, a sample is handed out first and the order follows from its results; later results
    refine it (BlendServe §5.3).
    """

    def __init__(
        self,
        job: OfflineJob,
        order: str,
        known: NDArray[np.float64] | None = None,
    ) -> None:
        """order: a name of `offline.orders`. known: float64 [n] by place, output tokens of each
        request, NaN where not known; the job's `outputs` are believed until there are results.
        None: they are the lengths.

        Raises ValueError for an unknown order.
        """
        self._job = job
        self._order = order
        self._known = job.outputs.mean.copy() if known is None else known.copy()
        self._num_results = 0
        self._places = _inverse(job.tree.order)
        self._numbers = job.tree.order.tolist()
        self._is_out = np.zeros(len(self._numbers), dtype=np.bool_)
        self._is_over = np.zeros(len(self._numbers), dtype=np.bool_)
        self.memory_s_left = 0.0
        """Memory seconds that the requests not over yet are expected to take."""
        self._prefixes = LivePrefixes(job.tree)
        self._pins = keeps_families(order)
        self._node_ends: dict[int, End] = {}
        self._edge_tokens = job.tree.edge_tokens.tolist()
        self._depth = job.tree.depth.tolist()
        self._own_tokens = (job.tree.lengths - job.tree.depth[job.tree.leaf_node]).tolist()
        self._open: dict[int, _Open] = {}
        self._held = {End.COMPUTE: 0, End.MEMORY: 0}
        self._backlog = 0
        self._returned: deque[tuple[int, _Open]] = deque()
        self._forecast = WorkingSetForecast()
        self._sample: set[int] = set()
        self._begin()

    def _begin(self) -> None:
        has_known = not bool(np.isnan(self._known).all())
        if has_known and np.isnan(self._known).any():
            self._estimate()
        line = plan_line(self._job, self._order)
        if not has_known and is_planned(self._order):
            sample = sample_places(self._job.tree, np.random.default_rng(self._job.seed))
            self._sample = set(sample.tolist())
            line = sample_line(self._job, sample)
        self._renew_after = 1.0 if self._sample else float(_LEAST_RESULTS)
        self._scanner = DualScanner(line, is_ramping=not self._sample)
        self._set_own()

    def __len__(self) -> int:
        """Requests not handed out yet, those put back among them."""
        return len(self._scanner) + len(self._returned)

    @property
    def num_open(self) -> int:
        """Requests handed out that have not ended."""
        return len(self._open)

    @property
    def open_bytes(self) -> int:
        """KV that these are expected to hold, what they share counted once."""
        return sum(self._held.values())

    @property
    def kv_bytes(self) -> int:
        """Of one token."""
        return self._job.model.kv_bytes

    @property
    def pinned(self) -> frozenset[int]:
        """The pins that were asked for and not freed: for who gives the job up."""
        return self._prefixes.needed

    def take(self, room: Room) -> list[Fed]:
        """The requests to submit now, in this order.

        Together with those under way they are expected to hold no more than `room` has beside what
        interactive requests held lately, but for one; alone in the unit, one may always run.
        """
        expected = self._forecast.expect(room.now, room.other_bytes)
        size = max(0.0, room.size_bytes - expected)
        fed: list[Fed] = []
        while self._backlog < _CHUNKS_AHEAD * room.chunk_tokens:
            is_alone = not self._open and room.other_bytes == 0
            found = self._next(size, is_alone=is_alone)
            if found is None:
                break
            fed.append(found)
        return fed

    def started(self, number: int) -> None:
        """The request got its first token, so its prompt is computed. KeyError: it is not open."""
        opened = self._open[number]
        self._backlog -= opened.backlog
        opened.backlog = 0

    def ended(self, number: int, output_tokens: int | None) -> tuple[int, ...]:
        """The request is over; the ids of pins to free. KeyError: it is not open.

        output_tokens: None where it tells nothing about lengths (refused, aborted).
        """
        place = self._withdraw(number).taken.place
        freed = tuple(self._prefixes.free(place)) if self._pins else ()
        self._sample.discard(place)
        self._is_over[place] = True
        self.memory_s_left = max(0.0, self.memory_s_left - float(self._memory_s[place]))
        if output_tokens is not None and np.isnan(self._known[place]):
            self._known[place] = max(1, output_tokens)
            self._num_results += 1
        if not self._sample and self._num_results >= self._renew_after:
            self._renew()
        return freed

    def put_back(self, number: int) -> None:
        """An open request is to be handed out again: its unit was lost. KeyError: it is not open.

        Its pins stay.
        """
        taken = self._withdraw(number).taken
        place = taken.place
        again = _Open(taken, self._own_bytes[place], self._own_tokens[place])
        self._returned.append((number, again))

    def _next(self, size: float, *, is_alone: bool) -> Fed | None:
        if self.open_bytes >= size and not is_alone:
            return None
        if self._returned:
            number, again = self._returned.popleft()
            self._put(number, again)
            return Fed(number, ())
        taken = self._scanner.take(self._held[End.COMPUTE], self._held[End.MEMORY], size)
        if taken is None and is_alone:
            taken = self._scanner.take(0.0, 0.0, 1.0)
        return None if taken is None else self._hand_out(taken)

    def _hand_out(self, taken: Taken) -> Fed:
        place, number = taken.place, self._numbers[taken.place]
        self._is_out[place] = True
        self._put(number, _Open(taken, self._own_bytes[place], self._own_tokens[place]))
        nodes = self._prefixes.need(place) if self._pins else []
        return Fed(number, tuple(Pin(node, self._depth[node]) for node in nodes))

    def _put(self, number: int, opened: _Open) -> None:
        end, nodes = opened.taken.end, self._prefixes.open(opened.taken.place)
        for node in nodes:
            self._node_ends[node] = end
            self._held[end] += self._node_bytes(node)
            opened.backlog += self._edge_tokens[node]
        self._open[number] = opened
        self._held[end] += opened.own_bytes
        self._backlog += opened.backlog

    def _withdraw(self, number: int) -> _Open:
        opened = self._open.pop(number)
        for node in self._prefixes.close(opened.taken.place):
            self._held[self._node_ends.pop(node)] -= self._node_bytes(node)
        self._held[opened.taken.end] -= opened.own_bytes
        self._backlog -= opened.backlog
        return opened

    def _node_bytes(self, node: int) -> int:
        return int(self._edge_tokens[node] * self._job.model.kv_bytes)

    def _renew(self) -> None:
        """Lengths are estimated anew, and what is left is planned with them."""
        self._renew_after = max(
            self._num_results + _LEAST_RESULTS, self._num_results * _MORE_RESULTS
        )
        self._estimate()
        self._set_own()
        if is_planned(self._order) and len(self._scanner):
            line = plan_line(self._job, self._order)
            self._scanner = DualScanner(replanned(line, self._scanner, self._is_out))

    def _estimate(self) -> None:
        if np.isnan(self._known).any():
            outputs = estimate_lengths(self._job.tree, self._known, _PRIOR_WEIGHT)
        else:
            outputs = known_lengths(self._known)
        self._job = replace(self._job, outputs=outputs)

    def _set_own(self) -> None:
        """A request's output is as long as half of it in the mean over its life, and a long one
        lives longer."""
        outputs = self._job.outputs
        self._memory_s = leaf_work(self._job.tree, self._job.model, outputs).memory_s
        self.memory_s_left = float(self._memory_s[~self._is_over].sum())
        tokens = self._own_tokens + outputs.square / outputs.mean / 2
        self._own_bytes = np.ceil(tokens * self._job.model.kv_bytes).astype(np.int64).tolist()


def _inverse(order: NDArray[np.int64]) -> NDArray[np.int64]:
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return places
