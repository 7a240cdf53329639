"""How a line of a batch is answered, as the batch service sees it."""

from dataclasses import dataclass
from typing import Protocol

from muxcluster.batch.store.entry import Entry
from muxcluster.batch.store.job import Use
from muxcluster.batch.store.store import Result


@dataclass(frozen=True, slots=True)
class Answer:
    """How a line ended. output_tokens: of a choice, in the mean; None where there is no answer."""

    result: Result
    output_tokens: int | None


class OnTokens(Protocol):
    """Told of a line's tokens as they come."""

    def __call__(self, num_tokens: int, *, is_first: bool) -> None:
        """num_tokens: of its stream so far, which begins again where the line lost its unit.
        is_first: once a line."""
        ...


class Answerer(Protocol):
    """Answers lines of batches. used: tokens of all answers so far."""

    used: Use

    async def answer(self, line: int, entry: Entry, batch_id: str, on_tokens: OnTokens) -> Answer:
        """The line's one result: an answer, or the error that a client would get.

        While the server has no room or no unit it is tried again, so this may take for ever.
        Cancelling it frees all that the request holds.
        """
        ...
