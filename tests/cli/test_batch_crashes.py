"""`muxcluster batch run` is killed, loses its unit's processes, finds the disk full: every line
ends once."""

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.batch.disks import fill, mounted
from tests.cli.batches import (
    START_TIMEOUT_S,
    build_models,
    num_ended,
    prompts,
    started,
    texts,
    wait_until_ended,
    write_config,
    write_job,
)
from tests.cli.calls import call


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("two")
    return write_config(folder / "two.yaml", build_models(folder))


@dataclass(frozen=True, slots=True)
class Job:
    """A job of `count` lines and the command that runs it."""

    count: int
    folder: Path
    config: str
    max_tokens: int = 6

    @property
    def output(self) -> Path:
        return self.folder / "out.jsonl"

    @property
    def state(self) -> Path:
        return self.folder / "out.jsonl.batch"

    def arguments(self, input_folder: Path) -> tuple[str, ...]:
        """Writes the input file too."""
        asked = prompts(self.count, seed=self.count)
        file = write_job(input_folder / "in.jsonl", asked, self.max_tokens)
        return (file, "-o", str(self.output), "--config", self.config, "--order", "fcfs")

    def check_whole(self) -> None:
        """Every custom_id is answered, once, and nothing else is left."""
        assert sorted(texts(self.output)) == sorted(f"r-{i}" for i in range(self.count))
        assert not self.output.with_name("out.errors.jsonl").exists()
        assert not self.state.exists()


def _finish(arguments: tuple[str, ...]) -> None:
    process = started(*arguments)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err


def _descendants(pid: int) -> list[int]:
    """Of a process, its children first."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = [int(child) for child in children]
    threads = [int(each) for each in os.listdir(f"/proc/{pid}/task") if int(each) != pid]
    for thread in threads:
        path = Path(f"/proc/{pid}/task/{thread}/children")
        found += [int(child) for child in path.read_text().split()] if path.exists() else []
    return [*found, *(each for child in found for each in _descendants(child))]


def _kill_at(job: Job, arguments: tuple[str, ...], count: int, delay_s: float) -> bool:
    """Kill the command some time after so many lines have ended; False where it ended first."""
    process = started(*arguments)
    was_alive = wait_until_ended(process, job.state, count)
    time.sleep(delay_s)
    processes = _descendants(process.pid) if process.poll() is None else []
    process.kill()
    _, err = process.communicate(timeout=START_TIMEOUT_S)
    assert process.returncode in (0, -signal.SIGKILL), err
    _wait_for_end(processes)
    return was_alive and process.returncode != 0


def _wait_for_end(processes: list[int]) -> None:
    """A unit's processes do not outlive it."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while any(Path(f"/proc/{pid}").exists() for pid in processes):
        assert time.monotonic() < deadline, "a process of the killed command goes on"
        time.sleep(0.01)


def _killed_at_random(job: Job, folder: Path, num_kills: int, seed: int) -> int:
    """Kill the command so often and let it finish; how often it was killed in time."""
    rng, arguments, num_before, num_killed = random.Random(seed), job.arguments(folder), 0, 0
    for moment in sorted(rng.sample(range(int(0.8 * job.count)), num_kills)):
        num_killed += _kill_at(job, arguments, moment, rng.uniform(0.0, 0.05))
        if job.output.exists():
            break
        now = num_ended(job.state)
        assert now >= num_before
        num_before = now
    if not job.output.exists():
        _finish(arguments)
    job.check_whole()
    return num_killed


@pytest.mark.parametrize(
    ("num_kills", "seed"),
    [
        (1, 5),
        pytest.param(5, 1, marks=pytest.mark.slow),
        pytest.param(5, 2, marks=pytest.mark.slow),
    ],
)
def test_killed_at_random_moments_it_goes_on(
    tmp_path: Path, config: str, num_kills: int, seed: int
) -> None:
    job = Job(300, tmp_path, config)
    assert _killed_at_random(job, tmp_path, num_kills, seed) == num_kills


@pytest.mark.slow
def test_ten_thousand_requests_outlive_two_kills(tmp_path: Path, config: str) -> None:
    job = Job(10_000, tmp_path, config, max_tokens=2)
    assert _killed_at_random(job, tmp_path, 2, seed=3) == 2


@pytest.mark.slow
def test_killed_while_it_starts_it_goes_on(tmp_path: Path, config: str) -> None:
    """Before there is a folder, while the input is read, while the models are loaded."""
    job = Job(100, tmp_path, config)
    arguments = job.arguments(tmp_path)
    for sign in (job.state, job.state / "files" / "input"):
        process = started(*arguments)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not sign.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.kill()
        process.communicate()
    _finish(arguments)
    job.check_whole()


@pytest.mark.slow
def test_its_units_processes_are_killed_and_it_goes_on(tmp_path: Path, config: str) -> None:
    job = Job(400, tmp_path, config)
    process = started(*job.arguments(tmp_path))
    rng = random.Random(4)
    for moment in (20, 200):
        assert wait_until_ended(process, job.state, moment)
        os.kill(rng.choice(_descendants(process.pid)), signal.SIGKILL)
    _, err = process.communicate(timeout=START_TIMEOUT_S)
    assert process.returncode == 0, err
    job.check_whole()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte."""
    with mounted(tmp_path / "small") as place:
        yield place


@pytest.mark.slow
def test_a_full_disk_is_told_and_with_room_it_goes_on(
    capsys, tmp_path: Path, small_disk: Path, config: str
) -> None:
    """Full when the folder is made, while the input is read, while answers are written, and when
    the database has no room for what the file has."""
    job = Job(400, small_disk, config)
    arguments = job.arguments(tmp_path)
    ended = [0]
    for kib in (0, 60, 100, 260):
        ballast = fill(small_disk, kib * 1024)
        code, out, err = call(capsys, "batch", "run", *arguments)
        assert (code, out) == (1, "")
        told = [line for line in err.splitlines() if line.strip()]
        assert len(told) == 1, err
        assert told[0].startswith(f"muxcluster: {job.state}")
        assert "disk is full" in told[0] or "No space left" in told[0]
        ended.append(num_ended(job.state))
        assert not job.output.exists()
    assert ended == sorted(ended)
    assert 0 < ended[-1] < job.count
    ballast.unlink()
    code, out, err = call(capsys, "batch", "run", *arguments, "--json")
    assert code == 0, err
    assert json.loads(out)["completed"] == job.count
    job.check_whole()
