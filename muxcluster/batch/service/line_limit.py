"""Limits how many batch lines of a model run at a time."""

import asyncio
from collections.abc import Callable

Urgency = Callable[[], float]


class LineLimit:
    """At most `limit` lines of one model run at a time. The waiter with the least urgency value is
    next, of equal ones the first."""

    def __init__(self, limit: int) -> None:
        self._num_free = limit
        self._waiting: list[tuple[Urgency, asyncio.Future[None]]] = []

    async def take(self, urgency: Urgency) -> None:
        """Return when the caller may run a line. urgency: asked whenever another line ends."""
        if self._num_free and not self._waiting:
            self._num_free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((urgency, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()
            raise
        finally:
            self._waiting = [each for each in self._waiting if each[1] is not turn]

    def give(self) -> None:
        """A line that ran has ended."""
        open_turns = [each for each in self._waiting if not each[1].done()]
        if not open_turns:
            self._num_free += 1
            return
        _, turn = min(open_turns, key=lambda each: each[0]())
        turn.set_result(None)
