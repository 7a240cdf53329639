"""The ledger of what keys used: a SQLite file with a row for each key, model and day."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from muxcluster.core.inputs.sqlite_file import SqliteFile
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
        # what is committed survives the end of the process; a power cut may take the last rows
        self._file = SqliteFile(directory / NAME, _SCHEMA, _FORM, {"synchronous": "NORMAL"})
        oldest = day_name(today - _CALLER_DAYS)
        with self._file.writing() as connection:
            connection.execute("DELETE FROM callers WHERE day < ?", (oldest,))

    def add(self, rows: Sequence[UsageRow], today: int, batch: Batch | None = None) -> bool:
        """Add rows to the sums, all or none; False, adding none, if `batch` is there already.

        Raises StorageFailed if the disk refuses the write.
        """
        with self._file.writing() as connection:
            if batch is not None and self._has(batch):
                return False
            if batch is not None:
                values = (batch.caller, batch.serial, day_name(today))
                connection.execute("INSERT OR REPLACE INTO callers VALUES (?, ?, ?)", values)
            connection.executemany(_ADD, [_values(row) for row in rows])
        return True

    def _has(self, batch: Batch) -> bool:
        asked = "SELECT serial FROM callers WHERE caller = ?"
        found = self._file.connection.execute(asked, (batch.caller,)).fetchone()
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
        with self._file.failures():
            return [UsageRow(*found) for found in self._file.connection.execute(asked, values)]

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()


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
