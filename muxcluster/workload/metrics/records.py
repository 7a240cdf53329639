"""Results of requests, in columns: 86 bytes per request."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.events import FinishReason
from muxcluster.core.request import ServiceClass

CLASSES = tuple(ServiceClass)
# Disjoint parts of a request's time, as in `muxcluster.core.events.Finished`.
PARTS = ("queue_s", "prefill_s", "decode_s", "preempted_s", "restore_s")
_CHUNK = 8192


class Ending(IntEnum):
    """How a request ended; UNFINISHED: it had not when recording stopped."""

    FINISHED = 0
    ABORTED = 1
    FAILED = 2
    REJECTED = 3
    UNFINISHED = 4


# The engine's reasons as endings.
ENDINGS = {
    FinishReason.STOP: Ending.FINISHED,
    FinishReason.LENGTH: Ending.FINISHED,
    FinishReason.ABORT: Ending.ABORTED,
    FinishReason.ERROR: Ending.FAILED,
}


@dataclass(frozen=True, slots=True)
class Record:
    """One request, seconds on one clock."""

    model: str
    arrival_s: float
    first_token_s: float | None  # None without output
    last_token_s: float | None  # last token so far, where the request did not finish
    prompt_tokens: int
    output_tokens: int  # so far
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    ending: Ending = Ending.FINISHED
    # Time account, 0 where none was kept.
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    preempted_s: float = 0.0
    restore_s: float = 0.0
    waking_s: float = 0.0  # the part of queue_s and preempted_s without its model's weights


# Columns of `Record`, with model and class as positions in their lists and None as NaN.
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
        ("waking_s", np.float64),
    ]
)
assert tuple(field.name for field in fields(Record)) == ROW.names


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Requests in the order they were added."""

    models: tuple[str, ...]  # names by index
    rows: NDArray[np.void]  # `ROW` [n]

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, mask: NDArray[np.bool_]) -> "Records":
        """Return the requests where `mask` ([n]) is true, with all model names."""
        return Records(self.models, self.rows[mask])

    def of_model(self, model: str) -> "Records":
        """Return one model's requests. Raises ValueError for an unknown name."""
        return self.where(self.rows["model"] == self.models.index(model))

    def of_class(self, service_class: ServiceClass) -> "Records":
        """Return one class's requests."""
        return self.where(self.rows["service_class"] == CLASSES.index(service_class))

    @property
    def is_finished(self) -> NDArray[np.bool_]:
        """Return [n]: whether the request got all its output."""
        return np.asarray(self.rows["ending"] == Ending.FINISHED)


class RowLog:
    """Growing log of rows of `ROW`.

    Up to 8192 are kept as tuples; the others take `ROW.itemsize` each, twice that while `rows()`
    joins the chunks.
    """

    def __init__(self) -> None:
        self._chunks: list[NDArray[np.void]] = []
        self._waiting: list[tuple[object, ...]] = []

    def add(self, row: tuple[object, ...]) -> None:
        """Add one row, its values in the order of `ROW`."""
        self._waiting.append(row)
        if len(self._waiting) == _CHUNK:
            self._pack()

    def rows(self) -> NDArray[np.void]:
        """Return all rows so far, `ROW` [n]; the log may grow further."""
        self._pack()
        rows = np.concatenate(self._chunks)
        self._chunks = [rows]
        return rows

    def _pack(self) -> None:
        self._chunks.append(np.array(self._waiting, dtype=ROW))
        self._waiting = []


class RecordLog:
    """Log of records, added as requests end."""

    def __init__(self, models: Sequence[str] = ()) -> None:
        """models: names known in advance, kept even without requests."""
        self._index = {name: index for index, name in enumerate(models)}
        self._log = RowLog()

    def add(self, record: Record) -> None:
        """Add one record. Raises ValueError where its tokens and times contradict each other."""
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
                record.waking_s,
            )
        )

    def records(self) -> Records:
        """Return all records so far; the log may grow further."""
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
