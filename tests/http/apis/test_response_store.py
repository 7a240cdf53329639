"""The file of kept responses, without a server."""

from dataclasses import replace
from pathlib import Path

import pytest

from muxcluster.core.errors import StorageFailed
from muxcluster.http.apis.responses.store import NAME, ResponseFile, StoredResponse
from muxcluster.http.settings import StoreSettings

NOW_S = 1_800_000_000
DAY_S = 86_400


def stored(response_id: str, owner: str = "me", **changes: object) -> StoredResponse:
    made = StoredResponse(response_id, owner, NOW_S, NOW_S + 60, "", False, b"[]", b"{}")
    return replace(made, **changes)  # type: ignore[arg-type]


def settings(folder: Path, days: int = 30, most: int = 2**20) -> StoreSettings:
    return StoreSettings(str(folder / "kept"), days, most)


@pytest.fixture
def file(tmp_path: Path):
    opened = ResponseFile(settings(tmp_path))
    yield opened
    opened.close()


def test_what_is_kept_outlives_the_process(file: ResponseFile, tmp_path: Path) -> None:
    kept = stored("a", input=b'[{"x":1}]', response=b'{"y":2}', is_open=True)
    file.add(kept)
    file.close()
    again = ResponseFile(settings(tmp_path))
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


def test_old_ones_go(file: ResponseFile) -> None:
    file.add(stored("old", created_s=NOW_S - 30 * DAY_S - 1))
    file.add(stored("young", created_s=NOW_S - 30 * DAY_S))
    file.add(stored("new"))
    found = [each for each in ("old", "young", "new") if file.find("me", each)]
    assert found == ["young", "new"]


def test_a_keys_oldest_give_way_to_its_newest(tmp_path: Path) -> None:
    file = ResponseFile(settings(tmp_path, most=100))
    for number in range(5):
        file.add(stored(f"mine-{number}", created_s=NOW_S + number, response=b"x" * 38))
        file.add(stored(f"yours-{number}", "you", created_s=NOW_S + number, response=b"x" * 8))
    mine = [number for number in range(5) if file.find("me", f"mine-{number}")]
    assert mine == [3, 4]
    assert all(file.find("you", f"yours-{number}") for number in range(5))
    file.add(stored("huge", created_s=NOW_S + 9, response=b"x" * 200))
    assert file.find("me", "huge") is not None
    assert file.find("me", "mine-4") is None
    file.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file")
    with pytest.raises(StorageFailed, match=str(tmp_path / "kept")):
        ResponseFile(settings(tmp_path))
