"""The MPS daemon: calls in order, one unit a GPU, nothing left over however the unit ends."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from muxcluster.core.errors import EngineFailure
from muxcluster.engine.gpu.gpu_id import gpu_id_of, seen_by_clients
from muxcluster.engine.gpu.mps.daemon import LOG_DIRECTORY, PIPE_DIRECTORY, MpsDaemon
from muxcluster.engine.gpu.mps.guarded import GuardedDaemon
from tests.conftest import ROOT
from tests.engine.gpu.conftest import FakeControl
from tests.engine.gpu.fakes import FakeDaemons

ALIVE = "get_default_active_thread_percentage"


def test_started_asked_and_stopped_in_folders_of_its_own(tmp_path: Path) -> None:
    control = FakeDaemons()
    daemon = MpsDaemon("3", control, tmp_path)
    daemon.start()
    folders = {PIPE_DIRECTORY: f"{tmp_path}/3/pipe", LOG_DIRECTORY: f"{tmp_path}/3/log"}
    assert control.calls == [
        ("start", {**folders, "CUDA_VISIBLE_DEVICES": "3"}),
        (ALIVE, folders),
    ]
    assert daemon.clients == {**folders, "CUDA_VISIBLE_DEVICES": "0"}
    daemon.stop()
    daemon.stop()
    assert control.asked == ["start", ALIVE, "quit -t 5"]


def test_a_gpu_has_one_unit_of_ours_at_a_time(tmp_path: Path) -> None:
    first, second = (MpsDaemon("0", FakeDaemons(), tmp_path) for _ in range(2))
    other = MpsDaemon("1", FakeDaemons(), tmp_path)
    first.start()
    other.start()
    with pytest.raises(
        EngineFailure, match=rf"already has a unit of ours \(process {os.getpid()}\)"
    ):
        second.start(neighbour_s=0.0)
    second.stop()
    first.stop()
    second.start(neighbour_s=0.0)
    for each in (second, other):
        each.stop()


@pytest.mark.parametrize(
    ("control", "says"),
    [
        (FakeDaemons(installed=False), "nvidia-cuda-mps-control is not on the PATH"),
        (FakeDaemons(code=1, words="An instance of this daemon is already running"), "another MPS"),
        (FakeDaemons(code=3, words="cannot write"), "-d ended with 3: cannot write"),
    ],
    ids=["missing", "another", "broken"],
)
def test_a_daemon_that_cannot_be_had_says_why(
    control: FakeDaemons, says: str, tmp_path: Path
) -> None:
    daemon = MpsDaemon("0", control, tmp_path)
    with pytest.raises(EngineFailure, match=says) as caught:
        daemon.start(neighbour_s=0.0)
    assert "\n" not in str(caught.value)
    daemon.stop()


def test_a_daemon_that_is_gone_at_once_is_no_daemon(tmp_path: Path) -> None:
    control = FakeDaemons()
    control.answer = "Cannot find MPS control daemon process"
    daemon = MpsDaemon("0", control, tmp_path)
    with pytest.raises(EngineFailure, match="Cannot find MPS control daemon"):
        daemon.start()
    daemon.stop()


@pytest.mark.parametrize(
    ("device", "visible", "gpu_id", "clients"),
    [
        ("cuda:1", None, "1", "0"),
        ("cuda", None, "0", "0"),
        ("cuda:1", "2,5", "5", "0"),
        ("cuda:0", "GPU-8932f937", "GPU-8932f937", "GPU-8932f937"),
    ],
)
def test_the_gpu_is_named_as_daemon_and_clients_count(
    device: str, visible: str | None, gpu_id: str, clients: str
) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpu_id_of(device, environment) == gpu_id
    assert seen_by_clients(gpu_id) == clients


def test_a_gpu_that_is_not_visible_is_refused() -> None:
    with pytest.raises(ValueError, match="not among the 1 GPUs"):
        gpu_id_of("cuda:1", {"CUDA_VISIBLE_DEVICES": "0"})


def daemon_pid(folder: Path) -> int:
    return int((folder / "pipe" / "nvidia-cuda-mps-control.pid").read_text())


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_ended(pid: int) -> None:
    deadline = time.monotonic() + 60.0
    while is_running(pid):
        assert time.monotonic() < deadline, f"{pid} is still there"
        time.sleep(0.05)


def test_a_guarded_daemon_ends_with_its_stop(control: FakeControl) -> None:
    guarded = GuardedDaemon("0")
    pipe = Path(guarded.environment[PIPE_DIRECTORY])
    pid = daemon_pid(pipe.parent)
    assert is_running(pid)
    guarded.stop()
    wait_until_ended(pid)
    assert control.asked() == ["start", f"ask {ALIVE}", "ask quit -t 5"]


@pytest.mark.slow
def test_a_daemon_that_does_not_heed_quit_is_ended(
    control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    control.install(deaf=True)
    guarded = GuardedDaemon("0")
    pid = daemon_pid(Path(guarded.environment[PIPE_DIRECTORY]).parent)
    guarded.stop()
    wait_until_ended(pid)


UNIT = """
import sys, time
from muxcluster.engine.gpu.mps.guarded import GuardedDaemon
print(GuardedDaemon("0").environment["CUDA_MPS_PIPE_DIRECTORY"], flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_daemon_ends_when_its_unit_is_killed(control: FakeControl, how: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", UNIT], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as unit:
        assert unit.stdout is not None
        pipe = Path(unit.stdout.readline().strip())
        pid = daemon_pid(pipe.parent)
        assert is_running(pid)
        unit.send_signal(how)
    wait_until_ended(pid)


def test_a_daemon_that_a_crash_left_is_ended_before_ours_starts(control: FakeControl) -> None:
    first = GuardedDaemon("0")
    left = daemon_pid(Path(first.environment[PIPE_DIRECTORY]).parent)
    first._guard.kill()
    first._guard.wait()
    assert is_running(left)
    second = GuardedDaemon("0")
    wait_until_ended(left)
    fresh = daemon_pid(Path(second.environment[PIPE_DIRECTORY]).parent)
    assert is_running(fresh)
    for each in (first, second):
        each.stop()
    wait_until_ended(fresh)


def test_a_successor_waits_until_its_predecessor_is_gone(control: FakeControl) -> None:
    first = GuardedDaemon("0")
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(GuardedDaemon, "0")
        first.stop()
        second.result().stop()
    turns = [line for line in control.asked() if line != f"ask {ALIVE}"]
    assert turns == ["start", "ask quit -t 5", "start", "ask quit -t 5"]


def test_the_guards_refusal_arrives_in_the_unit(control: FakeControl) -> None:
    control.install(code=1, words="An instance of this daemon is already running")
    with pytest.raises(EngineFailure, match="another MPS daemon owns this GPU"):
        GuardedDaemon("0")
