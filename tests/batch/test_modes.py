"""What a batch store keeps, its owner alone may read."""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from muxcluster.batch.store.database import database_path
from muxcluster.batch.store.files import FileStore
from muxcluster.batch.store.store import BatchStore


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    found = (folder, *folder.rglob("*"))
    return {str(each.relative_to(folder)): oct(each.stat().st_mode & 0o777) for each in found}


EXPECTED = {
    ".": "0o700",
    "batches.sqlite": "0o600",
    "batches.sqlite-shm": "0o600",
    "batches.sqlite-wal": "0o600",
    "files": "0o700",
    "lock": "0o600",
    "uploads": "0o700",
}


def test_a_new_store(tmp_path: Path) -> None:
    store = BatchStore(tmp_path / "jobs" / "store")
    FileStore(store, 1000)
    assert modes(tmp_path / "jobs" / "store") == EXPECTED
    store.close()
    assert (tmp_path / "jobs").stat().st_mode & 0o777 == 0o777, "not ours alone"


def test_a_store_that_others_could_read(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = BatchStore(folder)
    FileStore(store, 1000)
    store.close()
    # left by a crash: the files beside the database are there, with what was committed
    connection = sqlite3.connect(database_path(folder))
    connection.execute("CREATE TABLE left_behind (x)")
    for each in (folder, *folder.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
    store = BatchStore(folder)
    FileStore(store, 1000)
    assert modes(folder) == EXPECTED
    store.close()
    connection.close()


def test_a_folder_that_holds_other_things_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    tmp_path.chmod(0o755)
    store = BatchStore(tmp_path)
    found = modes(tmp_path)
    assert (found["."], found["files"], found["batches.sqlite"]) == ("0o755", "0o700", "0o600")
    store.close()
