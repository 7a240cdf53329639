"""The SQLite file of a batch store: its tables, its one writer, its errors."""

import fcntl
import os
import sqlite3
from pathlib import Path

from muxcluster.core.errors import ConfigError, StorageFailed
from muxcluster.core.inputs.private import make_private_folder, open_private
from muxcluster.core.inputs.sqlite_file import SqliteFile, names_of

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, purpose TEXT NOT NULL, name TEXT NOT NULL,
    num_bytes INTEGER NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER
);
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
    input_file_id TEXT NOT NULL, endpoint TEXT, window TEXT NOT NULL, deadline_s INTEGER,
    metadata TEXT NOT NULL, status TEXT NOT NULL, times TEXT NOT NULL,
    num_total INTEGER NOT NULL DEFAULT 0, num_completed INTEGER NOT NULL DEFAULT 0,
    num_failed INTEGER NOT NULL DEFAULT 0, output_bytes INTEGER NOT NULL DEFAULT 0,
    error_bytes INTEGER NOT NULL DEFAULT 0, problem TEXT NOT NULL DEFAULT '',
    prompt_tokens INTEGER NOT NULL DEFAULT 0, cached_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0, results_lifetime_s INTEGER
);
CREATE TABLE IF NOT EXISTS lines (
    batch INTEGER NOT NULL, number INTEGER NOT NULL, offset INTEGER NOT NULL,
    size INTEGER NOT NULL, digest BLOB, model TEXT NOT NULL, weight INTEGER NOT NULL,
    has_ended INTEGER NOT NULL, family BLOB NOT NULL DEFAULT x'', PRIMARY KEY (batch, number)
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS line_names ON lines (batch, digest);
CREATE INDEX IF NOT EXISTS file_owners ON files (owner);
CREATE INDEX IF NOT EXISTS batch_states ON batches (status, owner);
"""

_FORM = 1  # grows with a change that the version before cannot work with
_NAME = "batches.sqlite"
FILES, UPLOADS = "files", "uploads"  # folders beside the database
_OURS = (*names_of(_NAME), "lock", FILES, UPLOADS)


def database_path(directory: Path) -> Path:
    return directory / _NAME


class Database(SqliteFile):
    """The file of a folder, whose lock makes this process its only writer.

    One thread at a time may use it, which the store's lock ensures.
    """

    def __init__(self, directory: Path) -> None:
        """Raises ConfigError if another process has the folder, or it cannot be used."""
        try:
            make_private_folder(directory, _OURS)
            self._lock = open_private(directory / "lock", os.O_RDWR)
        except OSError as error:
            raise ConfigError(directory, "", f"cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ConfigError(directory, "", "another process runs the batches in it") from None
        try:
            super().__init__(database_path(directory), _SCHEMA, _FORM, {"synchronous": "FULL"})
            with self.failures():
                _bring_up_to_date(self.connection)
        except StorageFailed:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Close the file and release the folder. Idempotent."""
        super().close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _bring_up_to_date(connection: sqlite3.Connection) -> None:
    """Add the columns that earlier versions lack.

    Lines that ended before count no tokens; those that have not keep the order of their file;
    files are kept until they are deleted.
    """
    found = {row[1] for row in connection.execute("PRAGMA table_info(batches)")}
    for name in ("prompt_tokens", "cached_tokens", "output_tokens"):
        if name not in found:
            connection.execute(f"ALTER TABLE batches ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0")
    if "results_lifetime_s" not in found:
        connection.execute("ALTER TABLE batches ADD COLUMN results_lifetime_s INTEGER")
    if "expires_at" not in {row[1] for row in connection.execute("PRAGMA table_info(files)")}:
        connection.execute("ALTER TABLE files ADD COLUMN expires_at INTEGER")
    if "family" not in {row[1] for row in connection.execute("PRAGMA table_info(lines)")}:
        connection.execute("ALTER TABLE lines ADD COLUMN family BLOB NOT NULL DEFAULT x''")
