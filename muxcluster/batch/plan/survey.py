"""Counts the requests of a job's file and remembers where they are, without tokenising any."""

from array import array
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxcluster.batch.store.entry import FAMILY_BYTES, family_of, parse_entry
from muxcluster.batch.store.intake import Limits, weight_of
from muxcluster.batch.store.lines import Line, read_lines
from muxcluster.batch.store.pending import Pending
from muxcluster.core.errors import ContentTooLarge, InvalidValue, ModelNotFound, RequestError

_MOST_TOLD = 3  # bad lines


class _Table:
    """The requests of one model, some thirty bytes each."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._numbers, self._offsets, self._sizes, self._weights = (array("q") for _ in range(4))
        self._families = bytearray()

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def weight(self) -> int:
        return int(np.array(self._weights, dtype=np.int64).sum())

    def add(self, line: Line, weight: int, family: bytes) -> None:
        self._numbers.append(line.number)
        self._offsets.append(line.offset)
        self._sizes.append(line.size)
        self._weights.append(weight)
        self._families += family

    def sample(self, most: int, num_runs: int) -> list[Pending]:
        """Return at most `most` requests: evenly spaced runs of neighbours by family."""
        families = np.frombuffer(bytes(self._families), dtype=f"S{FAMILY_BYTES}")
        by_family = np.argsort(families, kind="stable")
        return [self._pending(place) for place in by_family[runs(len(self), most, num_runs)]]

    def _pending(self, place: int) -> Pending:
        return Pending(
            self._numbers[place],
            self._offsets[place],
            self._sizes[place],
            self._model,
            self._weights[place],
        )


def runs(total: int, most: int, num_runs: int) -> NDArray[np.int64]:
    """Return places of evenly spaced runs, `most` in all; all places where they are no more."""
    if total <= most:
        return np.arange(total)
    length = most // num_runs
    starts = np.linspace(0, total - length, num_runs).astype(np.int64)
    return (starts[:, None] + np.arange(length)).ravel()


@dataclass(slots=True)
class Survey:
    """The requests of a file. tables: by model. bad: the first lines that are no requests that
    can run, with what is wrong."""

    tables: dict[str, _Table] = field(default_factory=dict)
    num_lines: int = 0
    num_bad: int = 0
    bad: list[dict[str, Any]] = field(default_factory=list)


def survey(file: Path, endpoint: str | None, models: Collection[str], limits: Limits) -> Survey:
    """Read all of `file`. endpoint: the only url of its lines; None: any.

    Two lines of the same custom_id are not found. Raises OSError; InvalidValue for too many lines,
    and where none of them can run.
    """
    found = Survey()
    with file.open("rb") as opened:
        for line in read_lines(opened, limits.line_bytes):
            if line.number > limits.lines:
                raise InvalidValue(f"the file has more than {limits.lines} lines", "input_file_id")
            found.num_lines += 1
            try:
                _add(found, line, endpoint, models)
            except RequestError as error:
                found.num_bad += 1
                if len(found.bad) < _MOST_TOLD:
                    found.bad.append({"line": line.number, "message": error.message})
    if not found.tables:
        first = f"; line {found.bad[0]['line']}: {found.bad[0]['message']}" if found.bad else ""
        message = f"no line of the file is a request that can run{first}"
        raise InvalidValue(message, "input_file_id")
    return found


def _add(found: Survey, line: Line, endpoint: str | None, models: Collection[str]) -> None:
    if line.data is None:
        raise ContentTooLarge(f"it has {line.size} bytes, which is too long")
    entry = parse_entry(line.data, endpoint)
    model = entry.model
    if model not in models:
        raise ModelNotFound(f"model {model!r:.80} is not served here", "body.model")
    table = found.tables.get(model)
    if table is None:
        table = found.tables[model] = _Table(model)
    table.add(line, weight_of(line, entry), family_of(entry))
