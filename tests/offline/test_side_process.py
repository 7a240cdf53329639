"""The process at one's side: results and errors come back, and kill -9 costs only time."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from muxcluster.core.errors import EngineFailure, InvalidValue
from muxcluster.offline.process import side
from muxcluster.offline.process.side import SideProcess


@pytest.fixture
def process() -> Iterator[SideProcess]:
    found = SideProcess()
    yield found
    found.close()


def _fail_once(marker: str) -> int:
    """Kill this process the first time."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def _refuse() -> None:
    raise InvalidValue("not so", "field")


def _is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_work_runs_elsewhere_and_its_errors_are_raised_here(process: SideProcess) -> None:
    assert process.pid is None
    found = asyncio.run(process.run(os.getpid))
    assert found == process.pid != os.getpid()
    with pytest.raises(InvalidValue, match="not so") as raised:
        asyncio.run(process.run(_refuse))
    assert raised.value.param == "field"


def test_a_killed_process_is_replaced_and_the_work_done_again(
    process: SideProcess, tmp_path: Path
) -> None:
    before = asyncio.run(process.run(os.getpid))
    after = asyncio.run(process.run(_fail_once, str(tmp_path / "killed")))
    assert after == process.pid != before


def test_a_process_that_is_closed_amid_its_start_does_no_work(
    process: SideProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    class ClosingPopen(subprocess.Popen):
        def __init__(self, *args, **kwargs) -> None:
            process._is_closed = True  # as `close` does, which finds no child yet
            super().__init__(*args, **kwargs)
            started.append(self.pid)

    monkeypatch.setattr(side.subprocess, "Popen", ClosingPopen)
    with pytest.raises(EngineFailure, match="the process for this work"):
        asyncio.run(process.run(time.sleep, 60.0))
    assert len(started) == 1 and not _is_there(started[0])


def test_work_that_always_kills_it_is_given_up(process: SideProcess) -> None:
    with pytest.raises(EngineFailure, match="the process for this work"):
        asyncio.run(process.run(os.kill, 0, signal.SIGKILL))


def test_closing_ends_the_work_under_way(process: SideProcess) -> None:
    async def run() -> None:
        work = asyncio.create_task(process.run(time.sleep, 1000.0))
        while process.pid is None:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(process.close)
        with pytest.raises(EngineFailure):
            await work

    asyncio.run(run())
    assert process.pid is None


def test_it_ends_with_its_parent() -> None:
    code = (
        "import asyncio, os, signal\n"
        "from muxcluster.offline.process.side import SideProcess\n"
        "print(asyncio.run(SideProcess().run(os.getpid)), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    for _ in range(1000):
        if not _is_there(pid):
            return
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("the process outlived its parent")
