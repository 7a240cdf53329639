"""The version of what a SQLite file of ours holds, in its header (`PRAGMA user_version`)."""

import sqlite3
from pathlib import Path

from muxcluster.core.errors import StorageFailed


def keep_form(connection: sqlite3.Connection, form: int, path: Path) -> None:
    """Note that a file has at least the form `form`, whose tables the caller has made.

    A file of the next form may be used, for this version can run beside the next one. Raises
    StorageFailed for a later one.
    """
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found > form + 1:
        raise StorageFailed(path, "a later version of muxcluster has changed it; use that version")
    if found < form:
        connection.execute(f"PRAGMA user_version = {form:d}")
