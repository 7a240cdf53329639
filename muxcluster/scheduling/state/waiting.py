"""Requests that wait, by class: priority first, then arrival; a preempted one keeps its place."""

from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop, heappush, heapreplace

from muxcluster.core.request import ServiceClass
from muxcluster.scheduling.state.live import LiveRequest


class WaitingQueue:
    """A priority queue of live requests by turn; removal is lazy."""

    def __init__(self) -> None:
        self.head: LiveRequest | None = None  # the first in turn; read many times a step
        self._heap: list[tuple[tuple[int, float, int], LiveRequest]] = []
        self._members: dict[int, LiveRequest] = {}

    def __len__(self) -> int:
        return len(self._members)

    def find_head(self) -> None:
        """Set `head` after a change."""
        while self._heap and not self._is_valid(*self._heap[0]):
            heappop(self._heap)
        self.head = self._heap[0][1] if self._heap else None

    def _is_valid(self, turn: tuple[int, float, int], live: LiveRequest) -> bool:
        return live.order in self._members and live.turn == turn

    def push(self, live: LiveRequest) -> None:
        """Add `live`, at the place that its turn gives it."""
        self._members[live.order] = live
        heappush(self._heap, (live.turn, live))
        self.find_head()

    def renew(self, now: float, least_s: float) -> None:
        """Let requests that can still be in time go before those that are late for a first token.

        A late one waits as if its target were `least_s`, then twice that, and so on: it falls
        behind, but not forever. Serving the oldest first under overload would make all late.
        """
        while (head := self.head) is not None and 0.0 < head.due_s < now:
            head.double_target(head.added_s, least_s)
            heapreplace(self._heap, (head.turn, head))
            self.find_head()

    def remove(self, live: LiveRequest) -> None:
        """Remove `live`, which is here."""
        del self._members[live.order]
        if self.head is live:
            self.find_head()


class Waiting:
    """The waiting requests of one model, by class."""

    def __init__(self) -> None:
        self._interactive, self._batch = WaitingQueue(), WaitingQueue()
        self.suspects = WaitingQueue()  # of both classes: those whose prompts must run alone
        self.by_class = {
            ServiceClass.INTERACTIVE: self._interactive,
            ServiceClass.BATCH: self._batch,
        }
        self._length = 0
        self.num_tokens = 0  # to compute before all of them have decoded one

    def __len__(self) -> int:
        return self._length

    @property
    def head(self) -> LiveRequest | None:
        """The most senior request of any class; no suspect."""
        interactive, batch = self._interactive.head, self._batch.head
        if interactive is None or (batch is not None and batch.seniority < interactive.seniority):
            return batch
        return interactive

    def push(self, live: LiveRequest) -> None:
        """Add `live`."""
        self._length += 1
        self.num_tokens += live.num_tokens
        self._queue(live).push(live)

    def remove(self, live: LiveRequest) -> None:
        """Remove `live`."""
        self._queue(live).remove(live)
        self._length -= 1
        self.num_tokens -= live.num_tokens

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Hide all requests but suspects, which no packing then admits."""
        for queue in self.by_class.values():
            queue.head = None
        try:
            yield
        finally:
            for queue in self.by_class.values():
                queue.find_head()

    def _queue(self, live: LiveRequest) -> WaitingQueue:
        if live.prefills_alone:
            return self.suspects
        return self.by_class[live.request.service_class]
