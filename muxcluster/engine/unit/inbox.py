"""Messages of other threads to a unit, kept until its own thread takes them."""

from collections import deque
from collections.abc import Iterator

from muxcluster.core.batch_part import LineOver, PartOver
from muxcluster.core.events import Finished, FinishReason, Rejected, StepOutput
from muxcluster.core.request import Request
from muxcluster.offline.unit_feeder import FedPart, PartRenewed, UnitFeeder
from muxcluster.scheduling.completion import events_only
from muxcluster.scheduling.scheduler import UnitScheduler

# A str is the id of a request to abort; Rejected and Finished end one that never became the
# scheduler's
Message = Request | Rejected | Finished | FedPart | LineOver | PartOver | PartRenewed | str


class Inbox:
    """Messages in order of arrival; the caller holds the unit's lock."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()

    def post(self, message: Message) -> None:
        self._messages.append(message)

    def clear(self) -> None:
        self._messages.clear()

    def hand_to(
        self, scheduler: UnitScheduler, feeder: UnitFeeder, now: float
    ) -> Iterator[StepOutput]:
        """Give all messages to the scheduler, or to the feeder what waits for its turn there.

        Returns what ended at once.
        """
        while self._messages:
            message = self._messages.popleft()
            output = None
            if isinstance(message, Request):
                output = None if feeder.hold(message) else scheduler.add(message, now)
            elif isinstance(message, str):
                output = _aborted(message, scheduler, feeder, now)
            elif isinstance(message, Rejected | Finished):
                output = events_only([message])
            elif isinstance(message, FedPart):
                feeder.add(message)
            elif isinstance(message, PartRenewed):
                feeder.renew(message)
            else:
                feeder.tell(message)
            if output is not None:
                yield output


def _aborted(
    request_id: str, scheduler: UnitScheduler, feeder: UnitFeeder, now: float
) -> StepOutput | None:
    if feeder.abort(request_id):
        return events_only([Finished(request_id, FinishReason.ABORT)])
    return scheduler.abort(request_id, now)
