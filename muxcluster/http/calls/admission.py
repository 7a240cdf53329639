"""Admission control: how many requests of a model and class may wait for their first token."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from muxcluster.core.errors import InvalidValue, Overloaded
from muxcluster.core.request import ServiceClass
from muxcluster.http.settings import QueueLimits

RATE_WINDOW_S = 10.0  # decay time of the average speed of a queue
UNKNOWN_RETRY_S = 5
MAX_RETRY_S = 60  # clients obey Retry-After up to a minute


class _Queue:
    """Requests of one model and class that wait for their first token, and how fast they start."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.num_waiting = 0
        self._starts = 0.0
        self._counted_s = time.monotonic()

    def start(self, now: float) -> None:
        """Remove one request from the queue, which has its first token or has ended."""
        self.num_waiting -= 1
        self._starts = self._decayed(now) + 1.0
        self._counted_s = now

    def retry_after_s(self, now: float) -> int:
        """Return the seconds until the queue should be empty at its present speed, 1 to 60."""
        rate = self._decayed(now) / RATE_WINDOW_S
        if rate * MAX_RETRY_S < 1.0:
            return UNKNOWN_RETRY_S
        return min(MAX_RETRY_S, max(1, math.ceil(self.num_waiting / rate)))

    def _decayed(self, now: float) -> float:
        return self._starts * math.exp((self._counted_s - now) / RATE_WINDOW_S)


class Gate:
    """Counts the waiting requests of each model and class, and refuses those over the limit.

    A request waits from its admission to its first token; running requests do not count.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._queues: dict[tuple[str, ServiceClass], _Queue] = {}

    def check(self, model: str, service_class: ServiceClass, num_requests: int) -> None:
        """Raise Overloaded if there are not so many places now, InvalidValue if there never are."""
        queue = self._queue(model, service_class)
        if num_requests > queue.limit:
            raise InvalidValue(f"at most {queue.limit} choices in one request of this class", "n")
        if queue.num_waiting + num_requests > queue.limit:
            raise Overloaded(
                f"{queue.num_waiting} requests of class {service_class} wait for {model}",
                queue.retry_after_s(time.monotonic()),
            )

    def admit(self, model: str, service_class: ServiceClass, num_requests: int) -> "Admission":
        """Take the places of one call's requests. Raises as `check`."""
        self.check(model, service_class, num_requests)
        return Admission(self._queue(model, service_class), num_requests)

    def num_waiting(self, model: str, service_class: ServiceClass) -> int:
        """Return how many admitted requests have no first token yet."""
        return self._queue(model, service_class).num_waiting

    def _queue(self, model: str, service_class: ServiceClass) -> _Queue:
        limit = self._limits.of(service_class)
        return self._queues.setdefault((model, service_class), _Queue(limit))


class Admission:
    """The places of one call's requests in a queue; a context manager that releases them."""

    def __init__(self, queue: _Queue, num_requests: int) -> None:
        self._queue = queue
        self._waiting = set(range(num_requests))
        queue.num_waiting += num_requests

    def start(self, index: int) -> None:
        """Release the place of request `index`: it has a token, or has ended. Idempotent."""
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
        """Release the places that are left, at the end of the call. Idempotent."""
        for index in tuple(self._waiting):
            self.start(index)

    def __enter__(self) -> "Admission":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
