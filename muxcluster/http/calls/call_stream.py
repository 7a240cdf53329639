"""The stream of a call: deltas of all its choices."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from muxcluster.core.errors import RequestTimeout
from muxcluster.http.calls.call import Call
from muxcluster.http.calls.choice import ChoiceDelta
from muxcluster.http.calls.merge import merge
from muxcluster.http.calls.time_limit import TimeLimit

Answer = Callable[[Call, int], AsyncGenerator[ChoiceDelta, None]]


class CallStream:
    """A `Stream` of the deltas of all choices of a call, in order of arrival.

    Raises what a choice raises, or RequestTimeout. Its end closes the choices and releases the
    call's admission.
    """

    def __init__(self, call: Call, answer: Answer) -> None:
        """answer: returns the stream of one choice; called at the first `anext`."""
        self._call = call
        self._answer = answer
        self._limit: TimeLimit | None = None
        self._is_over = False

    def __aiter__(self) -> "CallStream":
        return self

    async def __anext__(self) -> ChoiceDelta:
        if self._is_over:
            raise StopAsyncIteration
        limit = self._limit or self._begin()
        try:
            with limit:
                return await self._deltas.__anext__()
        except TimeoutError:
            await self.aclose()
            raise RequestTimeout(f"no end within {self._call.timeout_s:g} s") from None
        except BaseException:
            await self.aclose()
            raise

    def _begin(self) -> TimeLimit:
        call = self._call
        self._deltas = merge(self._choices())
        left_s = call.deadline_s - time.monotonic()
        self._limit = TimeLimit(asyncio.get_running_loop().time() + left_s)
        return self._limit

    def _choices(self) -> list[AsyncGenerator[ChoiceDelta, None]]:
        """Return a stream for each choice, or streams of several where that would be too many."""
        call = self._call
        if call.most_at_once is not None and call.runs_in_turns:
            most = call.most_at_once
            return [self._in_turn(first, most) for first in range(most)]
        return [self._answer(call, index) for index in range(call.num_choices)]

    async def _in_turn(self, first: int, step: int) -> AsyncGenerator[ChoiceDelta, None]:
        """Stream choice `first` and every `step`th after it, one after the other, in one place of
        the queue."""
        with self._call.admission.place(first):
            for index in range(first, self._call.num_choices, step):
                async with aclosing(self._answer(self._call, index)) as deltas:
                    async for delta in deltas:
                        yield delta

    async def aclose(self) -> None:
        """End the choices that are left. Idempotent."""
        self._is_over = True
        try:
            if self._limit is not None:
                self._limit.close()
                await self._deltas.aclose()
        finally:
            self._call.admission.release()
