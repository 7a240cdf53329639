"""The ledger of what keys used: a SQLite file with a row for each key, model and day."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from muxcluster.core.errors import StorageFailed
from muxcluster.core.inputs.private import make_private_folder, open_private
from muxcluster.core.inputs.sqlite_form import keep_form
from muxcluster.tenants.messages import UsageQuery, UsageRow

NAME = "usage.sqlite"
_DAY_S = 86_400
_CALLER_DAYS = 30  # for so long a batch of an ingress may be repeated
_FORM = 1  # grows with a change that the version before cannot work with
_SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    day TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL,
    requests INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL, refused INTEGER NOT NULL,
    PRIMARY KEY (day, key, model)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS callers (
    caller TEXT PRIMARY KEY, serial INTEGER NOT NULL, day TEXT NOT NULL
) WITHOUT ROWID;
"""
_ADD = """
INSERT INTO usage (
    day, key, model, requests, prompt_tokens, completion_tokens, cached_tokens, refused
) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (day, key, model) DO UPDATE SET
    requests = requests + excluded.requests,
    prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    completion_tokens = completion_tokens + excluded.completion_tokens,
    cached_tokens = cached_tokens + excluded.cached_tokens,
    refused = refused + excluded.refused
"""


@dataclass(frozen=True, slots=True)
class Batch:
    """The number of a batch of rows, which rises with each batch of a caller."""

    caller: str
    serial: int


def day_name(day: int) -> str:
    """Return a day, counted from 1970, as YYYY-MM-DD."""
    return datetime.fromtimestamp(day * _DAY_S, UTC).date().isoformat()


class Ledger:
    """The sums of all rows that were added. One thread at a time."""

    def __init__(self, directory: Path, today: int) -> None:
        """Open the file in `directory`, both made if missing. Raises StorageFailed."""
        self.path = directory / NAME
        try:
            make_private_folder(directory, (NAME, f"{NAME}-wal", f"{NAME}-shm"))
            os.close(open_private(self.path, os.O_RDWR))
        except OSError as error:
            raise StorageFailed(self.path, error.strerror or str(error)) from error
        with self._failures():
            self._connection = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode=WAL")
            # what is committed survives the end of the process; a power cut may take the last rows
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.executescript(_SCHEMA)
            keep_form(self._connection, _FORM, self.path)
            oldest = day_name(today - _CALLER_DAYS)
            self._connection.execute("DELETE FROM callers WHERE day < ?", (oldest,))

    def add(self, rows: Sequence[UsageRow], today: int, batch: Batch | None = None) -> bool:
        """Add rows to the sums, all or none; False, adding none, if `batch` is there already.

        Raises StorageFailed if the disk refuses the write.
        """
        with self._writing():
            if batch is not None and self._has(batch):
                return False
            if batch is not None:
                values = (batch.caller, batch.serial, day_name(today))
                self._connection.execute("INSERT OR REPLACE INTO callers VALUES (?, ?, ?)", values)
            self._connection.executemany(_ADD, [_values(row) for row in rows])
        return True

    def _has(self, batch: Batch) -> bool:
        asked = "SELECT serial FROM callers WHERE caller = ?"
        found = self._connection.execute(asked, (batch.caller,)).fetchone()
        return found is not None and found[0] >= batch.serial

    def rows(self, query: UsageQuery) -> list[UsageRow]:
        """Return the rows, by day, key and model. Raises StorageFailed."""
        asked = """
            SELECT day, key, model, requests, prompt_tokens, completion_tokens, cached_tokens,
                   refused FROM usage
            WHERE (:key IS NULL OR key = :key) AND (:model IS NULL OR model = :model)
                AND (:since IS NULL OR day >= :since) AND (:until IS NULL OR day <= :until)
            ORDER BY day, key, model
        """
        values = asdict(query)
        with self._failures():
            return [UsageRow(*found) for found in self._connection.execute(asked, values)]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Run the block in a transaction; if it raises, nothing is kept."""
        with self._failures():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                # a full disk may have rolled back already
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Raise SQLite's errors in the block as StorageFailed."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise StorageFailed(self.path, str(error)) from error

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._connection.close()


def _values(row: UsageRow) -> tuple[str | int, ...]:
    return (
        row.day,
        row.key,
        row.model,
        row.requests,
        row.prompt_tokens,
        row.completion_tokens,
        row.cached_tokens,
        row.refused,
    )
