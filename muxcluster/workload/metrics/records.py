"""What became of each request, kept in columns: 78 bytes a request, a million of them in 78 MB."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.events import FinishReason
from muxcluster.core.request import ServiceClass

CLASSES = tuple(ServiceClass)
PARTS = ("queue_s", "prefill_s", "decode_s", "preempted_s", "restore_s")
"""A request's time by what it did; disjoint, as in `muxcluster.core.events.Finished`."""
_CHUNK = 8192


class Ending(IntEnum):
    """How a request ended. unfinished: it had not when the recording stopped."""

    FINISHED = 0
    ABORTED = 1
    FAILED = 2
    REJECTED = 3
    UNFINISHED = 4


ENDINGS = {
    FinishReason.STOP: Ending.FINISHED,
    FinishReason.LENGTH: Ending.FINISHED,
    FinishReason.ABORT: Ending.ABORTED,
    FinishReason.ERROR: Ending.FAILED,
}
"""What the engine's reasons are here."""


@dataclass(frozen=True, slots=True)
class Record:
    """One request, seconds on one clock.

    first_token_s, last_token_s: when output came, None where none did; of a request that did not
    finish, the last token so far. output_tokens: tokens that came.
    queue_s .. restore_s: its time account, zero where nobody kept one.
    """

    model: str
    arrival_s: float
    first_token_s: float | None
    last_token_s: float | None
    prompt_tokens: int
    output_tokens: int
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    ending: Ending = Ending.FINISHED
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    preempted_s: float = 0.0
    restore_s: float = 0.0


ROW = np.dtype(
    [
        ("model", np.int32),
        ("arrival_s", np.float64),
        ("first_token_s", np.float64),
        ("last_token_s", np.float64),
        ("prompt_tokens", np.int32),
        ("output_tokens", np.int32),
        ("service_class", np.int8),
        ("ending", np.int8),
        *((part, np.float64) for part in PARTS),
    ]
)
"""The columns: `Record` with the model and class as positions in their lists, None as NaN."""
assert tuple(field.name for field in fields(Record)) == ROW.names


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Requests in the order they were added. models: names by index. rows: `ROW` [n]."""

    models: tuple[str, ...]
    rows: NDArray[np.void]

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, mask: NDArray[np.bool_]) -> "Records":
        """The requests where `mask` ([n]) is true, with all model names."""
        return Records(self.models, self.rows[mask])

    def of_model(self, model: str) -> "Records":
        """One model's requests. Raises ValueError for a name that is not there."""
        return self.where(self.rows["model"] == self.models.index(model))

    def of_class(self, service_class: ServiceClass) -> "Records":
        """One class's requests."""
        return self.where(self.rows["service_class"] == CLASSES.index(service_class))

    @property
    def is_finished(self) -> NDArray[np.bool_]:
        """[n]: the request got all its output."""
        return np.asarray(self.rows["ending"] == Ending.FINISHED)


class RowLog:
    """Rows of `ROW`, one after the other.

    Up to 8192 wait as tuples; beyond those, memory is `ROW.itemsize` a row, and twice that while
    `rows()` joins the chunks.
    """

    def __init__(self) -> None:
        self._chunks: list[NDArray[np.void]] = []
        self._waiting: list[tuple[object, ...]] = []

    def add(self, row: tuple[object, ...]) -> None:
        """Keep one row, its values in the order of `ROW`."""
        self._waiting.append(row)
        if len(self._waiting) == _CHUNK:
            self._pack()

    def rows(self) -> NDArray[np.void]:
        """All rows so far, `ROW` [n]; the log goes on."""
        self._pack()
        rows = np.concatenate(self._chunks)
        self._chunks = [rows]
        return rows

    def _pack(self) -> None:
        self._chunks.append(np.array(self._waiting, dtype=ROW))
        self._waiting = []


class RecordLog:
    """Takes records as requests end. models: names known beforehand, kept even without requests."""

    def __init__(self, models: Sequence[str] = ()) -> None:
        self._index = {name: index for index, name in enumerate(models)}
        self._log = RowLog()

    def add(self, record: Record) -> None:
        """Keep one record. Raises ValueError where its tokens and times contradict each other."""
        _check(record)
        first, last = record.first_token_s, record.last_token_s
        self._log.add(
            (
                self._index.setdefault(record.model, len(self._index)),
                record.arrival_s,
                np.nan if first is None else first,
                np.nan if last is None else last,
                record.prompt_tokens,
                record.output_tokens,
                CLASSES.index(record.service_class),
                int(record.ending),
                record.queue_s,
                record.prefill_s,
                record.decode_s,
                record.preempted_s,
                record.restore_s,
            )
        )

    def records(self) -> Records:
        """All records so far; the log goes on."""
        return Records(tuple(self._index), self._log.rows())


def _check(record: Record) -> None:
    first, last = record.first_token_s, record.last_token_s
    if first is None or last is None:
        is_right = first is last and record.output_tokens == 0
        is_right = is_right and record.ending is not Ending.FINISHED
    else:
        is_right = record.arrival_s <= first <= last and record.output_tokens >= 1
    if not is_right:
        raise ValueError(
            f"{record}: tokens need arrival_s <= first_token_s <= last_token_s, and a finished "
            "request needs a token"
        )
