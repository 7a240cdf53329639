"""The version in a SQLite file: kept, not lowered, and refused where it is too far ahead."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from muxcluster.core.errors import StorageFailed
from muxcluster.core.inputs.sqlite_file import keep_form


@pytest.fixture()
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "x.sqlite", isolation_level=None)
    yield connection
    connection.close()


def form_of(connection: sqlite3.Connection) -> int:
    (form,) = connection.execute("PRAGMA user_version").fetchone()
    return int(form)


def test_it_rises_and_does_not_fall(connection: sqlite3.Connection, tmp_path: Path) -> None:
    for form, kept in ((1, 1), (3, 3), (2, 3), (3, 3)):
        keep_form(connection, form, tmp_path)
        assert form_of(connection) == kept


def test_a_file_from_far_ahead_is_refused(connection: sqlite3.Connection, tmp_path: Path) -> None:
    keep_form(connection, 5, tmp_path)
    with pytest.raises(StorageFailed, match="later version"):
        keep_form(connection, 3, tmp_path)
    assert form_of(connection) == 5
