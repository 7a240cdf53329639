"""Requests that wait, per class: priority first, then arrival; a preempted one keeps its place."""

from heapq import heappop, heappush
from operator import attrgetter

from muxcluster.core.request import ServiceClass
from muxcluster.scheduling.live import LiveRequest

_SENIORITY = attrgetter("seniority")


class WaitingQueue:
    """A priority queue of live requests by seniority; removal is lazy."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, LiveRequest]] = []
        self._members: dict[int, LiveRequest] = {}

    def __len__(self) -> int:
        return len(self._members)

    @property
    def head(self) -> LiveRequest | None:
        """The most senior request, None where nothing waits."""
        while self._heap and self._heap[0][0] not in self._members:
            heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def push(self, live: LiveRequest) -> None:
        """`live` waits, at the place its seniority gives it."""
        self._members[live.seniority] = live
        heappush(self._heap, (live.seniority, live))

    def remove(self, live: LiveRequest) -> None:
        """`live`, which is here, waits no longer."""
        del self._members[live.seniority]
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
