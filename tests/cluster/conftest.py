"""Real servers: `muxcluster serve` with three tiny models, as a child process."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from muxcluster.demo.models import build_model

FAMILIES = MappingProxyType({"llama-a": "llama", "qwen-b": "qwen3", "opt-c": "opt"})
MARK = "MUXCLUSTER_TEST_RUN"
MUXCLUSTER = (sys.executable, "-c", "from muxcluster.cli.main import main; main()")
START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 300.0


class MarkedProcess:
    """A command as a child, its output, and every process it has made."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], cwd: Path | None = None
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.lines: list[str] = []
        self._grown = threading.Condition()
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **env, MARK: self.mark, "COLUMNS": "300"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        """Everything printed so far."""
        return "\n".join(self.lines)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first match in the output; fails where the process ends before it."""
        deadline = time.monotonic() + START_TIMEOUT_S
        with self._grown:
            while (found := re.search(pattern, self.output)) is None:
                assert self.process.poll() is None, self.output
                assert time.monotonic() < deadline, self.output
                self._grown.wait(0.2)
        return found

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(signum)
        return self.process.wait(STOP_TIMEOUT_S)

    def join(self) -> None:
        """Wait for the end of the output of a process that has ended."""
        self._reader.join(STOP_TIMEOUT_S)

    def processes(self) -> set[int]:
        """Living processes that descend from it or carry its mark; zombies do not live."""
        found = _descendants(self.process.pid) | _marked(f"{MARK}={self.mark}".encode())
        return {pid for pid in found if _is_alive(pid)}

    def assert_gone(self, pids: set[int]) -> None:
        """Fails where one of these processes, or one with the mark, still lives after a while."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while left := {pid for pid in pids if _is_alive(pid)} | self.processes():
            commands = [Path(f"/proc/{pid}/cmdline").read_bytes()[:80] for pid in left]
            assert time.monotonic() < deadline, commands
            time.sleep(0.1)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._grown:
                self.lines.append(line.rstrip("\n"))
                self._grown.notify_all()


class ServerProcess(MarkedProcess):
    """`muxcluster ARGUMENTS`."""

    def __init__(self, *arguments: str) -> None:
        super().__init__((*MUXCLUSTER, *arguments), {})

    def url(self) -> str:
        """Where it listens, once it is ready."""
        self.wait_for(r"ready after")
        return self.wait_for(r"curl (http://\S+?)/v1/")[1]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the name: state, parent, ...; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _is_alive(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] != "Z"


def _descendants(root: int) -> set[int]:
    parent_of = {pid: int(fields[1]) for pid in _pids() if (fields := _stat(pid))}
    family = {root}
    while more := {pid for pid, parent in parent_of.items() if parent in family} - family:
        family |= more
    return family


def _marked(mark: bytes) -> set[int]:
    found = set()
    for pid in _pids():
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes():
                found.add(pid)
        except OSError:
            continue
    return found


def held(url: str) -> float:
    """KV blocks that requests hold, and requests that wait for some."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=STOP_TIMEOUT_S) as answer:
        text = answer.read().decode()
    names = ("muxcluster:used_blocks", "muxcluster:batch_blocks", "vllm:num_requests_waiting")
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in names
    )


StartServer = Callable[..., ServerProcess]


@pytest.fixture(scope="session")
def model_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories of three tiny models of three families, by name."""
    root = tmp_path_factory.mktemp("models")
    return {
        name: build_model(root / name, family, seed=seed)
        for seed, (name, family) in enumerate(FAMILIES.items())
    }


@pytest.fixture(scope="session")
def config_file(model_dirs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A muxcluster.yaml that serves them on this machine's CPU."""
    models = [
        {"name": name, "path": str(path), "rate": 1.0, "prompt_tokens": 32, "output_tokens": 32}
        for name, path in model_dirs.items()
    ]
    file = tmp_path_factory.mktemp("config") / "muxcluster.yaml"
    # Whether sharing pays is for the machine to say; what jobs there are is not, in a test.
    file.write_text(yaml.safe_dump({"models": models, "policy": {"sharing": "always"}}))
    return file


@pytest.fixture(scope="session")
def start_server() -> Iterator[StartServer]:
    """Starts servers; those still up at the end are stopped."""
    started: list[ServerProcess] = []

    def start(*arguments: str) -> ServerProcess:
        started.append(ServerProcess(*arguments))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.stop()
