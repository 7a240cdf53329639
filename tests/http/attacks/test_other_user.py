"""Another user of the same machine gets at no socket and no file of a server."""

import logging
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from muxcluster.batch.store.database import Database, database_path
from muxcluster.channel.curve import Door
from muxcluster.channel.server import UnitCalls, UnitServer
from muxcluster.cluster.ray.server_folder import ServerFolder
from muxcluster.core.served import UnitStats
from muxcluster.http.metrics.request_log import append_to
from muxcluster.tenants.ledger import NAME, Ledger

NOBODY = "nobody"
# a virtual environment is often in a folder of its user
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
TRY = """
import os, socket, sys
how, path = sys.argv[1:]
try:
    if how == "connect":
        socket.socket(socket.AF_UNIX).connect(path)
    elif how == "list":
        os.listdir(path)
    else:
        open(path, {"read": "rb", "write": "ab"}[how])
except PermissionError:
    sys.exit(13)
except OSError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def as_nobody(how: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PYTHON, "-c", TRY, how, str(path)],
        user=NOBODY,
        group=pwd.getpwnam(NOBODY).pw_gid,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )


def why_not() -> str | None:
    """Why no process of another user can be tried here; None where it can."""
    if os.geteuid() != 0:
        return "only root can run as another user"
    try:
        probe = as_nobody("list", Path("/"))
    except (KeyError, OSError) as error:
        return f"no process of {NOBODY} starts: {error}"
    return None if probe.returncode == 0 else f"{NOBODY} cannot run this Python: {probe.stderr}"


pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder that all users may enter, unlike pytest's own."""
    found = Path(tempfile.mkdtemp(prefix="mux-test-", dir="/tmp"))
    found.chmod(0o755)
    old = os.umask(0)  # nothing is private by the umask
    try:
        yield found
    finally:
        os.umask(old)
        shutil.rmtree(found)


def test_what_is_open_is_found_open(base: Path) -> None:
    """The test could fail."""
    (base / "open").write_text("x")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(base / "socket"))
        listening.listen()
        for how, path in (("read", "open"), ("write", "open"), ("list", ""), ("connect", "socket")):
            assert as_nobody(how, base / path).returncode == 0


def test_sockets_and_logs_of_a_server(base: Path) -> None:
    folder = ServerFolder(base)
    unit = UnitServer(
        Door(f"ipc://{folder.path}/unit"),
        UnitCalls(lambda request: None, lambda name: None, lambda: UnitStats("u", 0.0, 1, 1)),
    )
    unit.start()
    try:
        assert (folder.path / "unit").is_socket()
        for how, path in (("connect", "unit"), ("list", ""), ("list", "logs"), ("write", "owner")):
            denied = as_nobody(how, folder.path / path)
            assert denied.returncode == 13, (how, path, denied.stderr)
    finally:
        unit.close()
        folder.close()


def test_logs_ledger_and_batches(base: Path) -> None:
    """Each in a folder that others may enter, as an operator who chose it may have made it."""
    logger = logging.getLogger("muxcluster.tests.audit")
    append_to(logger, base / "audit.jsonl")
    logger.info("x")
    ledger = Ledger(base / "usage", 20_000)
    store = Database(base / "batches")
    try:
        for file in (
            base / "audit.jsonl",
            base / "usage" / NAME,
            database_path(base / "batches"),
        ):
            assert file.is_file()
            for how in ("read", "write"):
                denied = as_nobody(how, file)
                assert denied.returncode == 13, (how, file, denied.stderr)
    finally:
        store.close()
        ledger.close()
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
            handler.close()
