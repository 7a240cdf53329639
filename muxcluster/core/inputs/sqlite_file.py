"""SQLite files of ours: private, with the version of what they hold in the header."""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from muxcluster.core.errors import StorageFailed
from muxcluster.core.inputs.private import make_private_folder, open_private, tighten

_BESIDE = ("-wal", "-shm", "-journal")  # what SQLite puts beside a file


def names_of(name: str) -> tuple[str, ...]:
    """Return the names that a file called `name` and those beside it have."""
    return (name, *(name + suffix for suffix in _BESIDE))


class SqliteFile:
    """An open file and its one connection. One thread at a time.

    Public: path, connection.
    """

    def __init__(self, path: Path, schema: str, form: int, pragmas: Mapping[str, str]) -> None:
        """Open `path`, made with its folder if missing; other users may not read it.

        schema: statements that make the tables that are missing. form: see `keep_form`. Raises
        StorageFailed.
        """
        self.path = path
        try:
            make_private_folder(path.parent, names_of(path.name))
            os.close(open_private(path, os.O_RDWR))
        except OSError as error:
            raise StorageFailed(path, error.strerror or str(error)) from error
        for name in names_of(path.name):
            tighten(path.with_name(name))
        with self.failures():
            self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            try:
                for pragma, value in {"journal_mode": "WAL", **pragmas}.items():
                    self.connection.execute(f"PRAGMA {pragma}={value}")
                self.connection.executescript(schema)
                keep_form(self.connection, form, path)
            except BaseException:
                self.connection.close()
                raise

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Run the block in a transaction; if it raises, nothing is kept.

        Raises StorageFailed if the disk refuses the write.
        """
        with self.failures():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                # a full disk may have rolled back already
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Raise SQLite's errors in the block as StorageFailed."""
        try:
            yield
        except sqlite3.IntegrityError:
            raise  # a mistake of ours, not the disk's
        except sqlite3.DatabaseError as error:
            raise StorageFailed(self.path, str(error)) from error

    def close(self) -> None:
        """Close the file. Idempotent."""
        self.connection.close()


def keep_form(connection: sqlite3.Connection, form: int, path: Path) -> None:
    """Note that a file has at least the form `form`, whose tables the caller has made.

    The form is in the file's header (`PRAGMA user_version`). A file of the next form may be used,
    for this version can run beside the next one. Raises StorageFailed for a later one.
    """
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found > form + 1:
        raise StorageFailed(path, "a later version of muxcluster has changed it; use that version")
    if found < form:
        connection.execute(f"PRAGMA user_version = {form:d}")
