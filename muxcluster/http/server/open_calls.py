"""Limits the HTTP requests that are open at once and the memory of their bodies."""

from collections.abc import Callable

from muxcluster.core.errors import Overloaded
from muxcluster.http.settings import QueueLimits


class OpenCalls:
    """Counts open calls and their bytes. on_refused: called for each refused call."""

    def __init__(self, limits: QueueLimits, on_refused: Callable[[], None]) -> None:
        self.num_open = 0
        self.num_bytes = 0
        self._limits = limits
        self._on_refused = on_refused

    def enter(self) -> "OpenCall":
        """Return a place for one call, before its body is read. Raises Overloaded."""
        if self.num_open >= self._limits.open_calls:
            self.refuse(f"{self.num_open} requests are open")
        return OpenCall(self)

    def check_bytes(self, num_bytes: int) -> None:
        """Raise Overloaded if so many more bytes are over the limit."""
        if self.num_bytes + num_bytes > self._limits.body_bytes:
            self.refuse("the bodies of open requests take too much memory")

    def refuse(self, message: str) -> None:
        """Count a refused call and raise Overloaded."""
        self._on_refused()
        raise Overloaded(message)


class OpenCall:
    """One open call; a context manager that releases its place and its bytes."""

    def __init__(self, calls: OpenCalls) -> None:
        self._calls = calls
        self._num_bytes = 0

    def add_bytes(self, num_bytes: int) -> None:
        """Count a part of the body. Raises Overloaded."""
        self._calls.check_bytes(num_bytes)
        self._num_bytes += num_bytes
        self._calls.num_bytes += num_bytes

    def __enter__(self) -> "OpenCall":
        self._calls.num_open += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.num_open -= 1
        self._calls.num_bytes -= self._num_bytes
