"""How many bytes a key's files may hold, and when files are gone by themselves."""

import random
import sqlite3
import threading
from pathlib import Path

import pytest

from muxcluster.batch.store.database import database_path
from muxcluster.batch.store.files import FilePage, FileStore
from muxcluster.batch.store.job import Order, Status
from muxcluster.batch.store.quota import Quota, stored_bytes
from muxcluster.batch.store.store import BatchStore, Result
from muxcluster.core.errors import NotFound, StorageQuotaExceeded
from tests.batch.jobs import line_of, taken_in

LIMIT = 1000


@pytest.fixture
def store(tmp_path: Path) -> BatchStore:
    return BatchStore(tmp_path)


@pytest.fixture
def clock() -> list[float]:
    """The time, Unix seconds."""
    return [1000.0]


@pytest.fixture
def files(store: BatchStore, clock: list[float]) -> FileStore:
    return FileStore(store, 10**6, Quota(store, LIMIT), lambda: clock[0])


def _uploaded(
    files: FileStore, num_bytes: int, owner: str = "me", lifetime_s: int | None = None
) -> str:
    upload_id = files.begin(owner)
    files.add(upload_id, b"x" * num_bytes)
    return files.finish(upload_id, "in", "batch", 1000, lifetime_s).file_id


def test_a_key_keeps_at_most_its_bytes(files: FileStore, store: BatchStore) -> None:
    """Random uploads and deletions of two keys against a count of our own."""
    rng = random.Random(5)
    held: dict[str, dict[str, int]] = {"me": {}, "you": {}}
    num_refused = 0
    for _ in range(400):
        owner = rng.choice(("me", "you"))
        mine = held[owner]
        if mine and rng.random() < 0.4:
            gone = rng.choice(list(mine))
            files.delete(owner, gone)
            del mine[gone]
            continue
        size = rng.randint(1, 400)
        upload_id = files.begin(owner)
        try:
            files.add(upload_id, b"x" * size)
        except StorageQuotaExceeded as error:
            assert sum(mine.values()) + size > LIMIT
            assert str(sum(mine.values())) in error.message
            files.abandon(upload_id)
            num_refused += 1
        else:
            assert sum(mine.values()) + size <= LIMIT
            mine[files.finish(upload_id, "in", "batch", 1000).file_id] = size
        assert stored_bytes(store) == sum(sum(each.values()) for each in held.values())
    assert num_refused > 20


def test_uploads_under_way_count(files: FileStore) -> None:
    """However many threads send at once, they stay below the limit together."""
    uploads = [files.begin("me") for _ in range(8)]
    refused = []

    def send(upload_id: str) -> None:
        for _ in range(30):
            try:
                files.add(upload_id, b"x" * 10)
            except StorageQuotaExceeded:
                refused.append(upload_id)

    threads = [threading.Thread(target=send, args=(each,)) for each in uploads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # 8 * 30 * 10 bytes were sent
    assert len(refused) == 140
    sizes = [files.finish(each, "in", "batch", 1000).num_bytes for each in uploads]
    assert sum(sizes) == LIMIT


def test_results_are_never_refused_and_count(files: FileStore, store: BatchStore) -> None:
    taken_in(store, [line_of(f"r-{i}") for i in range(4)])
    quota = Quota(store, LIMIT)
    store.record("b", [Result(line, True, b"x" * 500) for line in (1, 2, 3, 4)])
    assert quota.used("me") == 4 * 501
    with pytest.raises(StorageQuotaExceeded):
        _uploaded(files, 1)
    _uploaded(files, 1, "you")
    store.enter("b", Status.COMPLETED, 5)
    assert quota.used("me") == 4 * 501


def test_without_a_limit_there_is_none(store: BatchStore) -> None:
    files = FileStore(store, 10**6)
    for _ in range(3):
        _uploaded(files, 900_000)
    assert stored_bytes(store) == 2_700_000


def test_an_expired_file_is_gone(files: FileStore, store: BatchStore, clock: list[float]) -> None:
    soon = _uploaded(files, 10, lifetime_s=3600)
    later = _uploaded(files, 20, lifetime_s=7200)
    kept = _uploaded(files, 30)
    assert files.get("me", soon).expires_at == 4600
    clock[0] = 4599.0
    assert files.expire() == 0
    clock[0] = 4600.0
    with pytest.raises(NotFound):
        files.get("me", soon)
    with pytest.raises(NotFound):
        files.read("me", soon, 0, 10)
    assert [each.file_id for each in files.listed("me", FilePage(9))] == [kept, later]
    assert store.path_of(soon).exists()
    assert files.expire() == 1
    assert not store.path_of(soon).exists()
    assert Quota(store, None).used("me") == 50
    clock[0] = 1e9
    assert files.expire() == 1
    assert [each.file_id for each in files.listed("me", FilePage(9))] == [kept]


def test_a_batch_reads_its_expired_file_to_the_end(
    files: FileStore, store: BatchStore, clock: list[float]
) -> None:
    file_id = _uploaded(files, 10, lifetime_s=3600)
    store.create(Order("me", file_id, None), 1000, "b")
    clock[0] = 9999.0
    assert files.expire() == 0
    assert store.path_of(file_id).read_bytes() == b"x" * 10
    assert Quota(store, None).used("me") == 10
    store.enter("b", Status.CANCELLED, 9999)
    assert files.expire() == 1
    assert not store.path_of(file_id).exists()


def test_results_expire_from_when_they_are_there(
    files: FileStore, store: BatchStore, clock: list[float]
) -> None:
    store.path_of("in").write_bytes(b"")
    store.create(Order("me", "in", None, results_lifetime_s=3600), 1000, "b")
    store.close()
    store = BatchStore(store.directory)
    assert store.get("b").order.results_lifetime_s == 3600
    with store.writing() as connection:
        connection.execute("INSERT INTO lines VALUES (1, 1, 0, 1, NULL, 'm', 1, 0, x'')")
    store.record("b", [Result(1, True, b"answer")])
    store.enter("b", Status.COMPLETED, 5000)
    files = FileStore(store, 10, clock=lambda: clock[0])
    clock[0] = 8599.0
    assert files.get("me", store.get("b").output_file_id).expires_at == 8600
    clock[0] = 8600.0
    assert files.expire() == 1


def test_folders_of_earlier_versions_are_kept(tmp_path: Path) -> None:
    """Files and batches without the columns of this version."""
    store = BatchStore(tmp_path)
    files = FileStore(store, 100)
    file_id = _uploaded(files, 10)
    store.create(Order("me", file_id, None), 1000, "b")
    store.close()
    connection = sqlite3.connect(database_path(tmp_path))
    connection.execute("ALTER TABLE files DROP COLUMN expires_at")
    connection.execute("ALTER TABLE batches DROP COLUMN results_lifetime_s")
    connection.close()
    store = BatchStore(tmp_path)
    files = FileStore(store, 100)
    assert files.get("me", file_id).expires_at is None
    assert store.get("b").order.results_lifetime_s is None
    assert store.get("b").order.input_file_id == file_id
