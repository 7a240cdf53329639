"""The bound on HTTP requests that are open at once and on the memory of their bodies."""

from collections.abc import Callable

from muxcluster.core.errors import Overloaded
from muxcluster.http.settings import QueueLimits


class OpenCalls:
    """Counts open calls and bytes. on_refused: called for each call that finds no room."""

    def __init__(self, limits: QueueLimits, on_refused: Callable[[], None]) -> None:
        self.num_open = 0
        self.num_bytes = 0
        self._limits = limits
        self._on_refused = on_refused

    def enter(self) -> "OpenCall":
        """A place for one call, before anything of it is read. Raises Overloaded."""
        if self.num_open >= self._limits.open_calls:
            self.refuse(f"{self.num_open} requests are open")
        return OpenCall(self)

    def check_bytes(self, num_bytes: int) -> None:
        """Raises Overloaded where so many more have no room."""
        if self.num_bytes + num_bytes > self._limits.body_bytes:
            self.refuse("the bodies of open requests take too much memory")

    def refuse(self, message: str) -> None:
        """Raises Overloaded."""
        self._on_refused()
        raise Overloaded(message)


class OpenCall:
    """One open call: a context manager that gives its place and its bytes back."""

    def __init__(self, calls: OpenCalls) -> None:
        self._calls = calls
        self._num_bytes = 0

    def add_bytes(self, num_bytes: int) -> None:
        """A part of the body has come. Raises Overloaded."""
        self._calls.check_bytes(num_bytes)
        self._num_bytes += num_bytes
        self._calls.num_bytes += num_bytes

    def __enter__(self) -> "OpenCall":
        self._calls.num_open += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.num_open -= 1
        self._calls.num_bytes -= self._num_bytes
