"""The `Answerer` protocol: how the batch service has a line answered."""

from dataclasses import dataclass
from typing import Protocol

from muxcluster.batch.store.entry import Entry
from muxcluster.batch.store.job import Use
from muxcluster.batch.store.store import Result
from muxcluster.core.batch_part import LinePlace


@dataclass(frozen=True, slots=True)
class Answer:
    """How a line ended. output_tokens: mean of its choices; None if there is no answer."""

    result: Result
    output_tokens: int | None


class OnTokens(Protocol):
    """Called with the number of a line's tokens as they come."""

    def __call__(self, num_tokens: int, *, is_first: bool) -> None:
        """num_tokens: of its stream so far; starts again if the line lost its unit. is_first: True
        once for a line."""
        ...


class Answerer(Protocol):
    """Answers lines of batches."""

    @property
    def used(self) -> Use:
        """Tokens of all answers so far."""
        ...

    async def answer(
        self,
        line: int,
        entry: Entry,
        batch_id: str,
        on_tokens: OnTokens,
        place: LinePlace | None = None,
    ) -> Answer:
        """Return the line's result: an answer, or the error that a client would get.

        place: of a line that its unit feeds.

        It is tried again while the server is full or has no unit, without a limit. Cancelling it
        frees all that the request holds.
        """
        ...
