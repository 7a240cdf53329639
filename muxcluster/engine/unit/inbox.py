"""Messages of other threads to a unit, kept until its own thread takes them."""

from collections import deque
from collections.abc import Iterator

from muxcluster.core.events import StepOutput
from muxcluster.core.request import PinnedPrefix, Request, Unpin
from muxcluster.scheduling.scheduler import UnitScheduler

Message = Request | PinnedPrefix | Unpin | str  # a str is the id of a request to abort


class Inbox:
    """Messages in order of arrival; the caller holds the unit's lock."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()

    def post(self, message: Message) -> None:
        self._messages.append(message)

    def clear(self) -> None:
        self._messages.clear()

    def hand_to(self, scheduler: UnitScheduler, now: float) -> Iterator[StepOutput]:
        """Give all messages to the scheduler; return what ended at once."""
        while self._messages:
            message = self._messages.popleft()
            output = None
            if isinstance(message, Request):
                output = scheduler.add(message, now)
            elif isinstance(message, str):
                output = scheduler.abort(message, now)
            else:
                scheduler.batch_memory.take(message)
            if output is not None:
                yield output
