"""Validates a batch's input file: enters its requests, records what is wrong with other lines."""

import hashlib
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from muxcluster.batch.store.appending import append
from muxcluster.batch.store.entry import Entry, custom_id_of, family_of, output_guess, parse_entry
from muxcluster.batch.store.job import Batch, Status
from muxcluster.batch.store.lines import Line, read_lines
from muxcluster.batch.store.results import refused
from muxcluster.batch.store.store import BatchStore, Result
from muxcluster.core.errors import ContentTooLarge, InvalidValue, ModelNotFound, RequestError

# most lines of a transaction, which is in memory; other batches write between two
_CHUNK, _CHUNK_BYTES = 2000, 64 * 2**20
_TEXT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an input file: over `lines` it is refused, over `line_bytes` the line fails."""

    line_bytes: int = 32 * 2**20
    lines: int = 1_000_000


class Intake:
    """Enters the lines of a batch into the store."""

    def __init__(
        self, store: BatchStore, batch: Batch, models: Collection[str], limits: Limits
    ) -> None:
        """models: names that lines may have."""
        self._store = store
        self._batch = batch
        self._models = frozenset(models)
        self._limits = limits

    def run(self, now: int) -> Batch:
        """Read the whole file; then the batch is in progress, or failed if no line can run.

        Entries of an earlier, interrupted call are removed first. A batch that is cancelled
        meanwhile stays so. Raises OSError, StorageFailed.
        """
        self._forget()
        batch_id = self._batch.batch_id
        path = self._store.path_of(self._batch.order.input_file_id)
        with path.open("rb") as file:
            lines = read_lines(file, self._limits.line_bytes)
            while chunk := _chunk(lines):
                if chunk[-1].number > self._limits.lines:
                    problem = f"the input file has more than {self._limits.lines} lines"
                    self._forget()
                    return self._leave(Status.FAILED, now, problem)
                self._enter(chunk)
        batch = self._store.get(batch_id)
        if batch.num_ended == batch.num_total:
            problem = "no line of the input file is a request that can run"
            return self._leave(Status.FAILED, now, problem)
        return self._leave(Status.IN_PROGRESS, now)

    def _leave(self, status: Status, now: int, problem: str = "") -> Batch:
        store, batch_id = self._store, self._batch.batch_id
        with store.lock:
            batch = store.get(batch_id)
            if batch.status is not Status.VALIDATING:
                return batch
            return store.enter(batch_id, status, now, problem)

    def _forget(self) -> None:
        with self._store.writing() as connection:
            batch_id = self._batch.batch_id
            connection.execute(
                "DELETE FROM lines WHERE batch = (SELECT number FROM batches WHERE id = ?)",
                (batch_id,),
            )
            connection.execute(
                "UPDATE batches SET num_total = 0, num_failed = 0, error_bytes = 0 WHERE id = ?",
                (batch_id,),
            )

    def _enter(self, lines: Iterable[Line]) -> None:
        """Record a chunk of lines and what is wrong with them, in one transaction."""
        store, batch_id = self._store, self._batch.batch_id
        with store.writing() as connection:
            sql = "SELECT number, error_bytes FROM batches WHERE id = ?"
            number, error_bytes = connection.execute(sql, (batch_id,)).fetchone()
            names = _Names(connection, number)
            failures = [failure for line in lines if (failure := self._check(line, names))]
            names.write()
            path = store.path_of(self._batch.error_file_id)
            error_bytes = append(path, error_bytes, (each.data for each in failures))
            connection.execute(
                "UPDATE batches SET num_total = num_total + ?, num_failed = num_failed + ?, "
                "error_bytes = ? WHERE id = ?",
                (names.num_entered, len(failures), error_bytes, batch_id),
            )

    def _check(self, line: Line, names: "_Names") -> Result | None:
        """Enter the line; return its failure if it cannot run."""
        custom_id = None
        try:
            entry = self._entry(line)
            names.check(entry.custom_id)
        except RequestError as error:
            custom_id = custom_id_of(line.data)
            if custom_id is not None and names.first(custom_id) is not None:
                custom_id = None
            names.enter(line, custom_id, None)
            return refused(line.number, custom_id, error.code, error.message)
        names.enter(line, entry.custom_id, entry)
        return None

    def _entry(self, line: Line) -> Entry:
        if line.data is None:
            most = self._limits.line_bytes
            raise ContentTooLarge(f"it has {line.size} bytes, and at most {most} are read")
        entry = parse_entry(line.data, self._batch.order.endpoint)
        if entry.model not in self._models:
            raise ModelNotFound(f"model {entry.model!r:.80} is not served here", "body.model")
        return entry


class _Names:
    """Lines entered so far by custom_id, within one transaction, at whose end they are written."""

    def __init__(self, connection: sqlite3.Connection, batch: int) -> None:
        self._connection = connection
        self._batch = batch
        self._rows: list[tuple[object, ...]] = []
        self._numbers: dict[bytes, int] = {}  # by digest, of `_rows`

    @property
    def num_entered(self) -> int:
        return len(self._rows)

    def first(self, custom_id: str) -> int | None:
        """Return the number of the line that has this name."""
        digest = _digest(custom_id)
        if digest in self._numbers:
            return self._numbers[digest]
        sql = "SELECT number FROM lines WHERE batch = ? AND digest = ?"
        found = self._connection.execute(sql, (self._batch, digest)).fetchone()
        return None if found is None else int(found[0])

    def check(self, custom_id: str) -> None:
        """Raise InvalidValue if a line has this name already."""
        first = self.first(custom_id)
        if first is not None:
            message = f"custom_id {custom_id!r:.80} is that of line {first} already"
            raise InvalidValue(message, "custom_id")

    def enter(self, line: Line, custom_id: str | None, entry: Entry | None) -> None:
        """Add a line. entry: None if it cannot run."""
        digest = None if custom_id is None else _digest(custom_id)
        model, weight, family = "", 0, b""
        if entry is not None:
            model, weight, family = entry.model, weight_of(line, entry), family_of(entry)
        if digest is not None:
            self._numbers[digest] = line.number
        self._rows.append(
            (self._batch, line.number, line.offset, line.size, digest, model, weight, not model)
            + (family,)
        )

    def write(self) -> None:
        """Write all entered lines."""
        self._connection.executemany(
            "INSERT INTO lines (batch, number, offset, size, digest, model, weight, has_ended, "
            "family) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            self._rows,
        )


def _chunk(lines: Iterator[Line]) -> list[Line]:
    """Return the next lines; none at the end."""
    chunk, num_bytes = [], 0
    for line in lines:
        chunk.append(line)
        num_bytes += len(line.data or b"")
        if len(chunk) == _CHUNK or num_bytes >= _CHUNK_BYTES:
            break
    return chunk


def _digest(custom_id: str) -> bytes:
    return hashlib.sha256(custom_id.encode()).digest()[:16]


def weight_of(line: Line, entry: Entry) -> int:
    """Return the estimated tokens of the line, from its length and its limit."""
    return 1 + line.size // _TEXT_BYTES + output_guess(entry)
