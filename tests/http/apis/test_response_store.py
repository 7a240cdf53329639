"""The file of kept responses, without a server."""

import contextlib
import sqlite3
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.errors import StorageFailed
from muxcluster.http.apis.responses.store import (
    MOST_TURN_BYTES,
    MOST_TURNS,
    NAME,
    ResponseFile,
    StoredResponse,
)
from muxcluster.http.settings import StoreSettings

NOW_S = 1_800_000_000
DAY_S = 86_400


def stored(response_id: str, owner: str = "me", **changes: object) -> StoredResponse:
    made = StoredResponse(response_id, owner, NOW_S + 60, "", False, b"[]", b"{}")
    return replace(made, **changes)  # type: ignore[arg-type]


def settings(folder: Path, days: int = 30, most: int = 2**20) -> StoreSettings:
    return StoreSettings(str(folder / "kept"), days, most)


class Clock:
    def __init__(self) -> None:
        self.now_s = float(NOW_S)

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path, clock: Clock):
    opened = ResponseFile(settings(tmp_path), clock)
    yield opened
    opened.close()


def test_what_is_kept_outlives_the_process(
    file: ResponseFile, clock: Clock, tmp_path: Path
) -> None:
    kept = stored("a", input=b'[{"x":1}]', response=b'{"y":2}', is_open=True)
    file.add(kept)
    file.close()
    again = ResponseFile(settings(tmp_path), clock)
    assert again.find("me", "a") == kept
    again.close()
    assert (tmp_path / "kept" / NAME).stat().st_mode & 0o077 == 0


def test_others_find_nothing_and_change_nothing(file: ResponseFile) -> None:
    file.add(stored("a", is_open=True))
    assert file.find("you", "a") is None
    assert file.turns("you", "a") == []
    assert not file.end("you", "a", b"{}")
    assert not file.delete("you", "a")
    assert file.find("me", "a") == stored("a", is_open=True)


def test_only_an_open_response_gets_an_end_and_one(file: ResponseFile) -> None:
    file.add(stored("a", is_open=True))
    assert file.end("me", "a", b'{"n":1}')
    assert not file.end("me", "a", b'{"n":2}')
    assert file.find("me", "a") == stored("a", response=b'{"n":1}')
    assert file.delete("me", "a")
    assert not file.end("me", "a", b'{"n":3}')
    assert not file.delete("me", "a")
    assert file.find("me", "a") is None


def test_turns_are_in_order_and_tell_where_one_is_gone(file: ResponseFile) -> None:
    for before, response_id in (("", "a"), ("a", "b"), ("b", "c"), ("a", "other")):
        file.add(stored(response_id, previous=before))
    assert [each.response_id for each in file.turns("me", "c")] == ["a", "b", "c"]
    assert [each.response_id for each in file.turns("me", "other")] == ["a", "other"]
    file.add(stored("theirs", "you", previous="a"))
    assert [each.response_id for each in file.turns("you", "theirs")] == ["theirs"]
    file.delete("me", "a")
    assert [(e.response_id, e.previous) for e in file.turns("me", "c")] == [("b", "a"), ("c", "b")]


def test_a_repeated_add_changes_nothing(file: ResponseFile) -> None:
    file.add(stored("a", is_open=True))
    assert file.end("me", "a", b'{"n":1}')
    file.add(stored("a", is_open=True))
    assert file.find("me", "a") == stored("a", response=b'{"n":1}')


def test_whether_one_is_open(file: ResponseFile) -> None:
    file.add(stored("a", is_open=True))
    assert file.is_open("me", "a") is True
    assert file.is_open("you", "a") is None
    file.end("me", "a", b"{}")
    assert file.is_open("me", "a") is False
    assert file.is_open("me", "b") is None


@pytest.mark.parametrize("what", ["turns", "bytes"])
def test_a_long_conversation_is_read_to_a_limit(tmp_path: Path, clock: Clock, what: str) -> None:
    file = ResponseFile(settings(tmp_path, most=2**30), clock)
    count, size = (MOST_TURNS, 2) if what == "turns" else (4, MOST_TURN_BYTES // 4)
    before = ""
    for number in range(count + 3):
        file.add(stored(f"{number}", previous=before, input=b"[]", response=b"x" * (size - 2)))
        before = f"{number}"
    found = file.turns("me", before)
    assert found[-1].response_id == before
    assert found[0].previous
    assert sum(len(each.input + each.response) for each in found[:-1]) <= MOST_TURN_BYTES
    assert len(found) == (count if what == "turns" else count + 1)
    file.close()


def test_old_ones_go(file: ResponseFile, clock: Clock, tmp_path: Path) -> None:
    """By the time at which the store got them, whoever asks for them."""
    file.add(stored("old"))
    clock.now_s += 1
    file.add(stored("young", previous="old"))
    clock.now_s += 30 * DAY_S
    assert file.find("me", "old") is None
    assert file.is_open("me", "old") is None
    assert [each.response_id for each in file.turns("me", "young")] == ["young"]
    assert rows(file) == ["old", "young"]
    file.add(stored("new"))
    assert rows(file) == ["new", "young"]
    clock.now_s += 1
    file.forget_old()
    assert rows(file) == ["new"]
    clock.now_s += 30 * DAY_S
    file.close()
    again = ResponseFile(settings(tmp_path), clock)
    assert rows(again) == []
    again.close()


def rows(file: ResponseFile) -> list[str]:
    """What is on disk."""
    with contextlib.closing(sqlite3.connect(file._file.path)) as other:
        return [each for (each,) in other.execute("SELECT id FROM responses ORDER BY id")]


def test_a_keys_oldest_give_way_to_its_newest(tmp_path: Path, clock: Clock) -> None:
    file = ResponseFile(settings(tmp_path, most=100), clock)
    for number in range(5):
        file.add(stored(f"mine-{number}", response=b"x" * 38))
        file.add(stored(f"yours-{number}", "you", response=b"x" * 8))
        clock.now_s += 1
    mine = [number for number in range(5) if file.find("me", f"mine-{number}")]
    assert mine == [3, 4]
    assert all(file.find("you", f"yours-{number}") for number in range(5))
    file.add(stored("huge", response=b"x" * 200))
    assert file.find("me", "huge") is not None
    assert file.find("me", "mine-4") is None
    file.close()


@given(steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 60))))
def test_the_sums_of_keys_are_those_of_their_rows(steps: list[tuple[int, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = ResponseFile(settings(Path(folder), most=100), Clock())
        for what, number, size in steps:
            owner, response_id = f"key-{number % 2}", f"{number}"
            if what == 0:
                assert file.delete(owner, response_id) in (True, False)
            elif what == 1:
                file.end(owner, response_id, b"x" * size)
            else:
                file.add(stored(response_id, owner, is_open=True, response=b"x" * size))
        with contextlib.closing(sqlite3.connect(file._file.path)) as other:
            held = dict(other.execute("SELECT owner, bytes FROM held"))
            asked = "SELECT owner, SUM(length(input) + length(response)) FROM responses GROUP BY 1"
            assert held == dict(other.execute(asked))
            sizes = "SELECT owner, COUNT(*) FROM responses GROUP BY 1"
            counts = dict(other.execute(sizes))
        assert all(held[owner] <= 100 or counts[owner] == 1 for owner in held)
        file.close()


def test_a_file_of_a_later_version_is_left_alone(file: ResponseFile, tmp_path: Path) -> None:
    file.close()
    with contextlib.closing(sqlite3.connect(file._file.path)) as other:
        other.execute("PRAGMA user_version = 3")
    with pytest.raises(StorageFailed, match="later version"):
        ResponseFile(settings(tmp_path))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file")
    with pytest.raises(StorageFailed, match=str(tmp_path / "kept")):
        ResponseFile(settings(tmp_path))
