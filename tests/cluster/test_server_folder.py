"""The folder of a server, what is left of it after kill -9, and the logs in it."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from muxcluster.cluster import embedded
from muxcluster.cluster.embedded import EmbeddedRay
from muxcluster.cluster.ray import process_logs
from muxcluster.cluster.ray.privacy import keep_token_private, make_token
from muxcluster.cluster.ray.process_logs import LogFollower
from muxcluster.cluster.ray.server_folder import ServerFolder, abandoned
from muxcluster.core.errors import EngineFailure

HOLDER = """
import sys, time
from pathlib import Path
from muxcluster.cluster.ray.server_folder import ServerFolder
folder = ServerFolder(Path(sys.argv[1]))
print(folder.path, flush=True)
time.sleep(600)
"""


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_it_is_private_and_goes(tmp_path: Path) -> None:
    folder = ServerFolder(tmp_path)
    assert mode(folder.path) == 0o700
    assert folder.logs.is_dir() and folder.path.parent == tmp_path
    folder.close()
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_a_ray_that_does_not_start_is_told_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(**_: object) -> None:
        raise Exception("The current node timed out during startup.")  # as Ray raises it

    monkeypatch.setattr(embedded.ray, "init", late)
    monkeypatch.setattr(embedded, "make_token", lambda: None)
    monkeypatch.setattr(embedded, "ServerFolder", partial(ServerFolder, tmp_path))
    with pytest.raises(EngineFailure, match="Ray does not start: The current node timed out"):
        EmbeddedRay(None, 1.0, 0.0)
    assert list(tmp_path.iterdir()) == []


def test_where_no_folder_can_be_made_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "ServerFolder", partial(ServerFolder, tmp_path / "none"))
    with pytest.raises(EngineFailure, match=r"no folder can be made .*No such file"):
        EmbeddedRay(None, 1.0, 0.0)


def test_what_a_killed_server_left_goes_with_the_next_start(tmp_path: Path) -> None:
    others = [tmp_path / "muxcluster-ranks-x", tmp_path / "muxcluster-mps-0", tmp_path / "x"]
    for path in others:
        path.mkdir()
    (tmp_path / "muxcluster-link").symlink_to(tmp_path / "x")
    (others[2] / "owner").touch()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    held = Path(holder.stdout.readline().strip())
    (held / "ray").mkdir()
    try:
        first = ServerFolder(tmp_path)
        assert held.is_dir(), "its server lives"
        assert list(abandoned(tmp_path)) == []
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    assert list(abandoned(tmp_path)) == [held]
    second = ServerFolder(tmp_path)
    assert not held.exists()
    assert first.path.is_dir() and all(path.is_dir() for path in others)
    second.close()
    first.close()


def test_logs_are_shown_line_by_line_under_their_files_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_logs, "PERIOD_S", 0.01)
    shown: list[str] = []
    (tmp_path / "notes.txt").write_text("no log\n")
    first, second = tmp_path / "local-0.1.log", tmp_path / "controller.log"
    first.write_bytes(b"one\ntw")
    follower = LogFollower(tmp_path, shown.append)
    _wait(lambda: shown == ["local-0.1 | one"])
    with first.open("ab") as file:
        file.write(b"o\n\xff\n")
    second.write_bytes(b"three\nno end")
    _wait(lambda: len(shown) == 4)
    assert sorted(shown[1:]) == ["controller | three", "local-0.1 | two", "local-0.1 | \ufffd"]
    with first.open("ab") as file:
        file.write(b"last\n")
    follower.close()
    assert shown[-1] == "local-0.1 | last"


def test_a_long_log_begins_anew_once_it_was_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_logs, "PERIOD_S", 0.01)
    monkeypatch.setattr(process_logs, "_MOST_BYTES", 100)
    shown: list[str] = []
    follower = LogFollower(tmp_path, shown.append)
    with (tmp_path / "unit.log").open("ab", buffering=0) as file:
        for number in range(300):
            file.write(f"line {number}\n".encode())
            if number % 50 == 0:
                time.sleep(0.05)
        follower.close()
    assert shown == [f"unit | line {number}" for number in range(300)]
    assert (tmp_path / "unit.log").stat().st_size < 300 * len("line 100\n")


def _wait(holds: object) -> None:
    deadline = time.monotonic() + 60
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new home folder, in which Ray would keep its token."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_new_token_is_private_whatever_the_umask(home: Path) -> None:
    before = os.umask(0)
    try:
        make_token()
    finally:
        os.umask(before)
    token = home / ".ray" / "auth_token"
    assert (mode(token), mode(token.parent)) == (0o600, 0o700)
    text = token.read_text()
    assert len(bytes.fromhex(text)) == 32
    make_token()
    assert token.read_text() == text


def test_a_token_that_is_there_becomes_private(home: Path) -> None:
    token = home / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("secret")
    token.chmod(0o644)
    keep_token_private()
    assert (mode(token), token.read_text()) == (0o600, "secret")


def test_no_token_is_made_where_the_user_says_otherwise(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    make_token()
    assert list(home.iterdir()) == []
