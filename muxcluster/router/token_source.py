"""What every source of tokens offers: a unit, all units, a test's script."""

from collections.abc import AsyncIterator, Awaitable
from typing import Protocol, TypeVar

from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request

T_co = TypeVar("T_co", covariant=True)


class Stream(Protocol[T_co]):
    """An async iterator that can be closed before its end; async generators are some."""

    def __aiter__(self) -> AsyncIterator[T_co]: ...

    def __anext__(self) -> Awaitable[T_co]: ...

    def aclose(self) -> Awaitable[None]:
        """End the stream and free what feeds it. Idempotent."""
        ...


class TokenSource(Protocol):
    """Answers requests with their tokens."""

    def generate(self, request: Request) -> Stream[TokenDelta]:
        """Return the deltas of `request` up to the one with finished or rejected.

        The first `anext` submits the request; `aclose` before the end aborts it. Iterating raises
        NotReady or Overloaded (the request may be sent again), InvalidValue and EngineFailure.
        """
        ...
