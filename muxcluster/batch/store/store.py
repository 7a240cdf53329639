"""The batches and files of one folder, which survive any crash."""

import json
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from muxcluster.batch.store.appending import append, cut
from muxcluster.batch.store.database import FILES, Database
from muxcluster.batch.store.job import OPEN, Batch, Order, Status, Use
from muxcluster.batch.store.pending import Pending, PendingLines
from muxcluster.core.errors import StorageFailed
from muxcluster.core.inputs.private import make_private_folder

_BATCH = (
    "id, owner, input_file_id, endpoint, window, deadline_s, metadata, results_lifetime_s, status, "
    "times, num_total, num_completed, num_failed, output_bytes, error_bytes, problem, "
    "prompt_tokens, cached_tokens, output_tokens"
)


@dataclass(frozen=True, slots=True)
class Result:
    """How a line ended. line: its number. is_answer: status 200. data: a line of JSON. use: tokens
    of an answer."""

    line: int
    is_answer: bool
    data: bytes
    use: Use = Use()


class BatchStore:
    """Batches in SQLite, files beside it. Any thread may call it; one process owns a folder.

    A line ends once: its result is appended to the output or the error file; one transaction then
    records its end and the file's length. `now`: Unix seconds.
    """

    def __init__(self, directory: Path) -> None:
        """Raises ConfigError if another process has the folder, StorageFailed."""
        self.directory = directory
        self.database = Database(directory)
        self.lock = threading.RLock()
        files = directory / FILES
        try:
            make_private_folder(files)
        except OSError as error:
            self.database.close()
            raise StorageFailed(files, error.strerror or str(error)) from error

    def close(self) -> None:
        """Release the folder to other processes. Idempotent."""
        with self.lock:
            self.database.close()

    def path_of(self, file_id: str) -> Path:
        """Return the path of a file's bytes."""
        return self.directory / FILES / file_id

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """As `Database.writing`; other threads wait."""
        with self.lock, self.database.writing() as connection:
            yield connection

    def create(self, order: Order, now: int, batch_id: str | None = None) -> Batch:
        """Create a batch, not validated yet. Raises StorageFailed."""
        batch_id = batch_id or f"batch_{uuid.uuid4().hex}"
        metadata, times = json.dumps(dict(order.metadata)), json.dumps({"created": now})
        with self.writing() as connection:
            connection.execute(
                "INSERT INTO batches (id, owner, input_file_id, endpoint, window, deadline_s, "
                "metadata, results_lifetime_s, status, times) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (batch_id, order.owner, order.input_file_id, order.endpoint, order.window)
                + (order.deadline_s, metadata, order.results_lifetime_s)
                + (Status.VALIDATING, times),
            )
        return self.get(batch_id)

    def get(self, batch_id: str) -> Batch:
        """Return a batch. Raises KeyError."""
        rows = self.rows(f"SELECT {_BATCH} FROM batches WHERE id = ?", batch_id)
        if not rows:
            raise KeyError(batch_id)
        return _batch(rows[0])

    def open_batches(self) -> list[Batch]:
        """Return the batches that have not ended, oldest first."""
        marks = ", ".join("?" * len(OPEN))
        sql = f"SELECT {_BATCH} FROM batches WHERE status IN ({marks}) ORDER BY number"
        return [_batch(row) for row in self.rows(sql, *sorted(OPEN))]

    def listed(self, owner: str, count: int, after: str | None = None) -> list[Batch]:
        """Return the owner's newest `count`, or the next after `after`, newest first."""
        sql = (
            f"SELECT {_BATCH} FROM batches WHERE owner = ? AND "
            "number < coalesce((SELECT number FROM batches WHERE id = ?), 1 << 62) "
            "ORDER BY number DESC LIMIT ?"
        )
        return [_batch(row) for row in self.rows(sql, owner, after, count)]

    def enter(self, batch_id: str, status: Status, now: int, problem: str = "") -> Batch:
        """Give the batch another status; at its end remove its lines.

        At the end the result files are cut to their recorded length. Raises KeyError,
        StorageFailed.
        """
        with self.lock:
            batch = self.get(batch_id)
            if status not in OPEN:
                self._settle(batch)
            times = json.dumps({**batch.times, status.value: now})
            with self.writing() as connection:
                connection.execute(
                    "UPDATE batches SET status = ?, times = ?, problem = ? WHERE id = ?",
                    (status, times, problem, batch_id),
                )
                if status not in OPEN:
                    connection.execute(f"DELETE FROM lines WHERE batch = {_NUMBER}", (batch_id,))
                    self._publish(connection, batch, now)
            return self.get(batch_id)

    def cancel(self, batch_id: str, now: int) -> Batch:
        """Mark an open batch as being cancelled; an ended one stays. Raises KeyError."""
        with self.lock:
            batch = self.get(batch_id)
            if batch.status not in OPEN or batch.status is Status.CANCELLING:
                return batch
            return self.enter(batch_id, Status.CANCELLING, now)

    def _settle(self, batch: Batch) -> None:
        for file_id, size in _files(batch):
            path = self.path_of(file_id)
            if size or path.exists():
                cut(path, size)

    def _publish(self, connection: sqlite3.Connection, batch: Batch, now: int) -> None:
        lifetime_s = batch.order.results_lifetime_s
        expires_at = None if lifetime_s is None else now + lifetime_s
        for file_id, size in _files(batch):
            if size:
                connection.execute(
                    "INSERT INTO files (id, owner, purpose, name, num_bytes, created_at, "
                    "expires_at) VALUES (?, ?, 'batch_output', ?, ?, ?, ?)",
                    (file_id, batch.order.owner, f"{file_id}.jsonl", size, now, expires_at),
                )

    def record(self, batch_id: str, results: Sequence[Result]) -> None:
        """Record that lines have ended; only the first result of each counts.

        Raises StorageFailed, and then nothing has changed.
        """
        with self.lock:
            batch = self.get(batch_id)
            pending = self._still_pending(batch_id, [each.line for each in results])
            once = {each.line: each for each in reversed(results) if each.line in pending}
            answers = [each for each in once.values() if each.is_answer]
            failures = [each for each in once.values() if not each.is_answer]
            output_bytes = append(
                self.path_of(batch.output_file_id), batch.output_bytes, _data(answers)
            )
            error_bytes = append(
                self.path_of(batch.error_file_id), batch.error_bytes, _data(failures)
            )
            use = sum((each.use for each in once.values()), Use())
            with self.writing() as connection:
                connection.executemany(
                    f"UPDATE lines SET has_ended = 1 WHERE batch = {_NUMBER} AND number = ?",
                    [(batch_id, line) for line in once],
                )
                connection.execute(
                    "UPDATE batches SET num_completed = num_completed + ?, num_failed = num_failed "
                    "+ ?, output_bytes = ?, error_bytes = ?, prompt_tokens = prompt_tokens + ?, "
                    "cached_tokens = cached_tokens + ?, output_tokens = output_tokens + ? "
                    "WHERE id = ?",
                    (len(answers), len(failures), output_bytes, error_bytes)
                    + (use.prompt, use.cached, use.output, batch_id),
                )

    def _still_pending(self, batch_id: str, lines: Sequence[int]) -> set[int]:
        sql = f"SELECT number FROM lines WHERE batch = {_NUMBER} AND number = ? AND NOT has_ended"
        return {line for line in lines if self.rows(sql, batch_id, line)}

    def pending(self, batch_id: str) -> list[Pending]:
        """Return the lines that have not ended, in the order of the file."""
        sql = (
            f"SELECT number, offset, size, model, weight FROM lines WHERE batch = {_NUMBER} AND "
            "NOT has_ended ORDER BY number"
        )
        return [Pending(*row) for row in self.rows(sql, batch_id)]

    def pending_lines(self, batch_id: str) -> PendingLines:
        """Return the lines that have not ended; those with like prompts are neighbours."""
        lines = f"FROM lines WHERE batch = {_NUMBER} AND NOT has_ended"
        found = self.rows(f"SELECT number {lines} ORDER BY family, number", batch_id)
        weights = self.rows(f"SELECT model, sum(weight) {lines} GROUP BY model", batch_id)
        numbers = np.fromiter((number for (number,) in found), np.int64, len(found))
        return PendingLines(numbers, dict(weights), partial(self._lines, batch_id))

    def _lines(self, batch_id: str, numbers: Sequence[int]) -> list[Pending]:
        sql = (
            f"SELECT number, offset, size, model, weight FROM lines WHERE batch = {_NUMBER} AND "
            "number IN (SELECT value FROM json_each(?))"
        )
        rows = self.rows(sql, batch_id, json.dumps(numbers))
        found = {row[0]: Pending(*row) for row in rows}
        return [found[number] for number in numbers]

    def reader(self, batch_id: str) -> Callable[[Pending], bytes]:
        """Return a function that reads lines of the input file, and may raise OSError."""
        path = self.path_of(self.get(batch_id).order.input_file_id)

        def read(line: Pending) -> bytes:
            with path.open("rb") as file:
                file.seek(line.offset)
                return file.read(line.size)

        return read

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query. Raises StorageFailed."""
        with self.lock, self.database.failures():
            return self.database.connection.execute(sql, values).fetchall()


_NUMBER = "(SELECT number FROM batches WHERE id = ?)"


def _files(batch: Batch) -> tuple[tuple[str, int], ...]:
    return (
        (batch.output_file_id, batch.output_bytes),
        (batch.error_file_id, batch.error_bytes),
    )


def _data(results: Sequence[Result]) -> Iterator[bytes]:
    return (each.data for each in results)


def _batch(row: Sequence[Any]) -> Batch:
    batch_id, owner, file_id, endpoint, window, deadline_s, metadata, lifetime_s, *rest = row
    status, times, *rest = rest
    order = Order(owner, file_id, endpoint, window, deadline_s, json.loads(metadata), lifetime_s)
    batch = Batch(batch_id, order, Status(status), json.loads(times), *rest[:-3])
    return replace(batch, use=Use(*rest[-3:]))
