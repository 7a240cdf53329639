"""Bounded queues at the door: how many requests may wait for their first token, and how long."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from muxcluster.core.errors import InvalidValue, Overloaded
from muxcluster.core.request import ServiceClass
from muxcluster.http.settings import QueueLimits

RATE_WINDOW_S = 10.0
"""Time over which the speed of a queue is averaged."""
UNKNOWN_RETRY_S = 5
MAX_RETRY_S = 60
"""Clients obey Retry-After up to a minute."""


class _Queue:
    """Requests of one model and class that wait for their first token.

    rate: starts per second, averaged with exponential decay.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.num_waiting = 0
        self._starts = 0.0
        self._counted_s = time.monotonic()

    def start(self, now: float) -> None:
        """One request leaves the queue, by a first token or otherwise."""
        self.num_waiting -= 1
        self._starts = self._decayed(now) + 1.0
        self._counted_s = now

    def retry_after_s(self, now: float) -> int:
        """Whole seconds until the queue should have emptied at its present speed, 1 to 60."""
        rate = self._decayed(now) / RATE_WINDOW_S
        if rate * MAX_RETRY_S < 1.0:
            return UNKNOWN_RETRY_S
        return min(MAX_RETRY_S, max(1, math.ceil(self.num_waiting / rate)))

    def _decayed(self, now: float) -> float:
        return self._starts * math.exp((self._counted_s - now) / RATE_WINDOW_S)


class Gate:
    """Counts the waiting requests of each model and class; refuses what would exceed the limit.

    A request waits from its admission to its first token, so running ones do not count, and
    requests that come while a unit recovers do.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._queues: dict[tuple[str, ServiceClass], _Queue] = {}

    def check(self, model: str, service_class: ServiceClass, num_requests: int) -> None:
        """Raises Overloaded where so many more have no room now, InvalidValue if they never do."""
        queue = self._queue(model, service_class)
        if num_requests > queue.limit:
            raise InvalidValue(f"at most {queue.limit} choices in one request of this class", "n")
        if queue.num_waiting + num_requests > queue.limit:
            raise Overloaded(
                f"{queue.num_waiting} requests of class {service_class} wait for {model}",
                queue.retry_after_s(time.monotonic()),
            )

    def admit(self, model: str, service_class: ServiceClass, num_requests: int) -> "Admission":
        """Takes room for the requests of one call. Raises as `check`."""
        self.check(model, service_class, num_requests)
        return Admission(self._queue(model, service_class), num_requests)

    def num_waiting(self, model: str, service_class: ServiceClass) -> int:
        """Admitted requests without a first token."""
        return self._queue(model, service_class).num_waiting

    def _queue(self, model: str, service_class: ServiceClass) -> _Queue:
        limit = self._limits.of(service_class)
        return self._queues.setdefault((model, service_class), _Queue(limit))


class Admission:
    """The room of one call's requests; a context manager that gives back what is left of it."""

    def __init__(self, queue: _Queue, num_requests: int) -> None:
        self._queue = queue
        self._waiting = set(range(num_requests))
        queue.num_waiting += num_requests

    def start(self, index: int) -> None:
        """Request `index` has its first token, or has ended. Idempotent."""
        if index in self._waiting:
            self._waiting.discard(index)
            self._queue.start(time.monotonic())

    @contextmanager
    def place(self, index: int) -> Iterator[None]:
        """Hold the place of request `index` until the end of the block at the latest."""
        try:
            yield
        finally:
            self.start(index)

    def release(self) -> None:
        """Gives back what is left, at the end of the call. Idempotent."""
        for index in tuple(self._waiting):
            self.start(index)

    def __enter__(self) -> "Admission":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
