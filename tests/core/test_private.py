"""Modes of files and folders: with any umask, and where something is there already."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from muxcluster.core.inputs.private import make_private_folder, open_private, tighten


@pytest.fixture(params=[0o000, 0o022, 0o777], ids=oct, autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def folder(path: Path, its_mode: int) -> Path:
    path.mkdir()
    path.chmod(its_mode)
    return path


def test_a_new_file_and_one_that_is_there(tmp_path: Path) -> None:
    old = tmp_path / "old"
    os.close(os.open(old, os.O_CREAT | os.O_WRONLY))
    old.chmod(0o644)
    for path in (tmp_path / "new", old):
        handle = open_private(path, os.O_WRONLY | os.O_APPEND)
        os.write(handle, b"line")
        os.close(handle)
        assert (mode(path), path.read_bytes()) == (0o600, b"line")


def test_a_device_is_left_as_it_is() -> None:
    before = mode(Path("/dev/null"))
    os.close(open_private("/dev/null", os.O_WRONLY))
    assert mode(Path("/dev/null")) == before


def test_folders(tmp_path: Path) -> None:
    new = tmp_path / "new"
    make_private_folder(new)
    assert mode(new) == 0o700
    old = folder(tmp_path / "old", 0o755)
    make_private_folder(old)
    assert mode(old) == 0o700


def test_a_folder_with_other_things_in_it_is_left_as_it_is(tmp_path: Path) -> None:
    shared, own = folder(tmp_path / "shared", 0o755), folder(tmp_path / "own", 0o755)
    folder(shared / "photos", 0o755)
    folder(own / "files", 0o755)
    for path in (shared, own):
        make_private_folder(path, ("files", "lock"))
    assert (mode(shared), mode(own)) == (0o755, 0o700)


def test_tightening(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    file.chmod(0o666)
    link = tmp_path / "link"
    link.symlink_to(file)
    tighten(link)
    assert mode(file) == 0o666, "links are not followed"
    tighten(file)
    assert mode(file) == 0o600
    tighten(tmp_path / "missing")
