"""Room for batch lines in the engine: who of those that wait comes next."""

import asyncio
from collections.abc import Callable

Urgency = Callable[[], float]


class LineLimit:
    """At most `limit` lines of one model under way. The waiter of least urgency value comes next,
    of equal ones the one that has waited longest."""

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
