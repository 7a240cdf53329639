"""Requests that wait, per class: priority first, then arrival; a preempted one keeps its place."""

from heapq import heappop, heappush, heapreplace
from operator import attrgetter

from muxcluster.core.request import ServiceClass
from muxcluster.scheduling.live import LiveRequest

_SENIORITY = attrgetter("seniority")


class WaitingQueue:
    """A priority queue of live requests by turn; removal is lazy."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float, int], LiveRequest]] = []
        self._members: dict[int, LiveRequest] = {}

    def __len__(self) -> int:
        return len(self._members)

    @property
    def head(self) -> LiveRequest | None:
        """The most senior request, None where nothing waits."""
        while self._heap and not self._is_valid(*self._heap[0]):
            heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def _is_valid(self, turn: tuple[int, float, int], live: LiveRequest) -> bool:
        return live.order in self._members and live.turn == turn

    def push(self, live: LiveRequest) -> None:
        """`live` waits, at the place that its turn gives it."""
        self._members[live.order] = live
        heappush(self._heap, (live.turn, live))

    def renew(self, now: float, least_s: float) -> None:
        """Who is late for the first token lets those go first who can still be in time.

        It waits as if its target were `least_s`, then twice that, again and again: it falls behind,
        but not for ever. Serving the oldest first under overload would make everybody late. Costs
        nothing while nobody is late.
        """
        while (head := self.head) is not None and 0.0 < head.due_s < now:
            head.double_target(head.added_s, least_s)
            heapreplace(self._heap, (head.turn, head))

    def remove(self, live: LiveRequest) -> None:
        """`live`, which is here, waits no longer."""
        del self._members[live.order]
        if self._heap[0][1] is live:
            heappop(self._heap)


class Waiting:
    """The waiting requests of one model, by class."""

    def __init__(self) -> None:
        self.by_class = {service: WaitingQueue() for service in ServiceClass}
        self._length = 0
        self.num_tokens = 0
        """Tokens to compute before all of them have decoded one."""

    def __len__(self) -> int:
        return self._length

    @property
    def head(self) -> LiveRequest | None:
        """The most senior request of any class."""
        heads = [head for queue in self.by_class.values() if (head := queue.head) is not None]
        return min(heads, key=_SENIORITY) if heads else None

    def push(self, live: LiveRequest) -> None:
        """`live` waits (again)."""
        self._length += 1
        self.num_tokens += live.num_tokens
        self.by_class[live.request.service_class].push(live)

    def remove(self, live: LiveRequest) -> None:
        """`live` waits no longer."""
        self.by_class[live.request.service_class].remove(live)
        self._length -= 1
        self.num_tokens -= live.num_tokens
