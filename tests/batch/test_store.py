"""The store: every line ends once, whatever ends the process or fills the disk."""

import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from muxcluster.batch.store.database import database_path
from muxcluster.batch.store.job import Order, Status, Use
from muxcluster.batch.store.store import BatchStore, Result
from muxcluster.core.errors import ConfigError, StorageFailed
from tests.batch.jobs import line_of, read_results, result_of, taken_in

COUNT = 3000
WORKER = """
import random, resource, sys
from pathlib import Path
from muxcluster.batch.store.store import BatchStore
from muxcluster.core.errors import StorageFailed
from tests.batch.jobs import result_of
folder, limit, seed = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
store, rng = BatchStore(folder), random.Random(seed)
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
lines = store.pending("b")
rng.shuffle(lines)
print("begun", flush=True)
try:
    while lines:
        count = rng.randint(1, 40)
        store.record("b", [result_of(line) for line in lines[:count]])
        del lines[:count]
except StorageFailed as error:
    sys.exit(f"full: {error}")
"""


def _worker(folder: Path, limit: int = 0, seed: int = 0) -> "subprocess.Popen[str]":
    command = (sys.executable, "-c", WORKER, str(folder), str(limit), str(seed))
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _made(folder: Path, count: int = COUNT) -> None:
    store = BatchStore(folder)
    taken_in(store, [line_of(f"r-{i}") for i in range(count)])
    store.close()


def _check_halfway(folder: Path) -> int:
    """Everything recorded is in a file once and whole; how many lines that are."""
    store = BatchStore(folder)
    batch = store.get("b")
    told = {}
    for file_id, size in (
        (batch.output_file_id, batch.output_bytes),
        (batch.error_file_id, batch.error_bytes),
    ):
        path = store.path_of(file_id)
        data = path.read_bytes()[:size] if size else b""
        assert data.endswith(b"\n") or not data
        told[file_id] = data.count(b"\n")
    counts = [batch.num_completed, batch.num_failed]
    assert list(told.values()) == counts
    assert len(store.pending("b")) == batch.num_total - sum(counts)
    store.close()
    return sum(counts)


def _finish(folder: Path, count: int = COUNT) -> None:
    """Record what is left; then every line is in one of the files, once."""
    store = BatchStore(folder)
    store.record("b", [result_of(line) for line in store.pending("b")])
    batch = store.enter("b", Status.COMPLETED, 9)
    output = read_results(store.path_of(batch.output_file_id))
    errors = read_results(store.path_of(batch.error_file_id))
    assert sorted(each["line"] for each in output) == list(range(2, count + 1, 2))
    assert sorted(each["line"] for each in errors) == list(range(1, count + 1, 2))
    assert (batch.num_completed, batch.num_failed) == (len(output), len(errors))
    store.close()


def test_killed_at_any_moment_no_line_is_lost_or_doubled(tmp_path: Path) -> None:
    _made(tmp_path)
    rng, num_recorded = random.Random(1), 0
    for seed in range(5):
        worker = _worker(tmp_path, seed=seed)
        assert worker.stdout is not None
        worker.stdout.readline()
        try:
            worker.wait(rng.uniform(0.0, 0.1))
        except subprocess.TimeoutExpired:
            worker.send_signal(signal.SIGKILL)
        worker.communicate()
        now = _check_halfway(tmp_path)
        assert now >= num_recorded
        num_recorded = now
    _finish(tmp_path)


@pytest.mark.parametrize("limit", [40_000, 90_000, 300_001, 390_000])
def test_a_full_disk_is_said_and_leaves_whole_lines_alone(tmp_path: Path, limit: int) -> None:
    _made(tmp_path)
    worker = _worker(tmp_path, limit)
    _, err = worker.communicate(timeout=60)
    assert worker.returncode == 1, err
    assert "full: " in err
    assert str(tmp_path) in err
    assert "Traceback" not in err
    assert _check_halfway(tmp_path) < COUNT
    _finish(tmp_path)


def test_the_first_result_of_a_line_counts(tmp_path: Path) -> None:
    _made(tmp_path, 2)
    store = BatchStore(tmp_path)
    first = Result(1, True, b'{"n": 1}', Use(5, 2, 3))
    store.record("b", [first, Result(1, False, b'{"n": 2}', Use(100))])
    store.record("b", [Result(1, True, b'{"n": 3}'), Result(2, True, b'{"n": 4}')])
    store.record("b", [Result(99, True, b'{"n": 5}', Use(100))])
    batch = store.get("b")
    found = read_results(store.path_of(batch.output_file_id))
    assert [each["n"] for each in found] == [1, 4]
    assert (batch.num_completed, batch.num_failed) == (2, 0)
    assert batch.use == Use(5, 2, 3)
    assert not store.path_of(batch.error_file_id).exists()
    store.close()


def test_a_folder_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    _made(tmp_path, 2)
    connection = sqlite3.connect(database_path(tmp_path))
    for name in ("prompt_tokens", "cached_tokens", "output_tokens"):
        connection.execute(f"ALTER TABLE batches DROP COLUMN {name}")
    connection.commit()
    connection.close()
    store = BatchStore(tmp_path)
    assert store.get("b").use == Use()
    store.record("b", [Result(1, True, b"{}", Use(5, 2, 3))])
    assert store.get("b").use == Use(5, 2, 3)
    store.close()


def test_what_a_crash_left_behind_the_recorded_end_is_gone(tmp_path: Path) -> None:
    _made(tmp_path, 4)
    store = BatchStore(tmp_path)
    store.record("b", [Result(2, True, b'{"line": 2}')])
    path = store.path_of(store.get("b").output_file_id)
    with path.open("ab") as file:
        file.write(b'{"line": 4}\n{"li')
    store.record("b", [Result(1, True, b"{}")])
    assert path.read_bytes() == b'{"line": 2}\n{}\n'
    with path.open("ab") as file:
        file.write(b'{"line": 4}\n{"li')
    store.enter("b", Status.CANCELLED, 5)
    assert path.read_bytes() == b'{"line": 2}\n{}\n'
    store.close()


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    store = BatchStore(tmp_path)
    with pytest.raises(ConfigError, match="another process"):
        BatchStore(tmp_path)
    store.close()
    BatchStore(tmp_path).close()


def test_a_file_that_is_no_database_is_said(tmp_path: Path) -> None:
    (tmp_path / "batches.sqlite").write_bytes(b"hello" * 1000)
    for _ in range(2):
        with pytest.raises(StorageFailed, match="batches.sqlite: file is not a database"):
            BatchStore(tmp_path)
    (tmp_path / "batches.sqlite").unlink()
    (tmp_path / "files").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(StorageFailed, match="files: File exists"):
            BatchStore(tmp_path)


def test_lists_are_newest_first_and_the_owner_alone_sees_them(tmp_path: Path) -> None:
    store = BatchStore(tmp_path)
    for number in range(5):
        owner = "me" if number % 2 == 0 else "you"
        store.create(Order(owner, "f", None, metadata={"n": "é"}), number, f"b{number}")
    assert [each.batch_id for each in store.listed("me", 2)] == ["b4", "b2"]
    assert [each.batch_id for each in store.listed("me", 2, "b2")] == ["b0"]
    assert [each.batch_id for each in store.listed("you", 9)] == ["b3", "b1"]
    assert store.listed("nobody", 9) == []
    store.enter("b1", Status.FAILED, 7, "why")
    assert [each.batch_id for each in store.open_batches()] == ["b0", "b2", "b3", "b4"]
    assert store.get("b1").times == {"created": 1, "failed": 7}
    assert store.get("b1").order.metadata == {"n": "é"}
    with pytest.raises(KeyError):
        store.get("b9")
    store.close()
