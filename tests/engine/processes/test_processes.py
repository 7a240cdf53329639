"""Worker processes: same tokens as in one process, whoever is killed, and none is left over."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from muxcluster.channel.codec import Start, encode
from muxcluster.core.errors import EngineFailure, LoadError
from muxcluster.core.events import FinishReason
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobFailed, OwnerLost
from muxcluster.engine.processes.executor import ProcessExecutor
from muxcluster.engine.processes.launcher import ForkLauncher
from muxcluster.engine.processes.liveness import Patience
from muxcluster.engine.processes.owner_link import OwnerLink
from muxcluster.engine.unit.unit import Unit
from tests.amounts import slow
from tests.engine.conftest import ModelBuilder
from tests.engine.live_units import (
    NUM_TOKENS,
    SAMPLED,
    Live,
    RecordingExecutor,
    asked_of,
    is_gone,
    wait_until_gone,
    workers_of,
)
from tests.engine.units import check_lengths, check_nothing_leaks, greedy, running, spec_of, submit

ROOT = Path(__file__).resolve().parents[3]
THREE = ("llama", "qwen3", "opt")


@pytest.fixture(scope="module")
def three(tiny: ModelBuilder) -> UnitSpec:
    return spec_of([tiny(family) for family in THREE])


@pytest.fixture(scope="module")
def started(three: UnitSpec) -> Iterator[Live]:
    executor = RecordingExecutor(three)
    with running(three, executor) as (unit, sink):
        yield Live(executor, unit, sink)


@pytest.fixture
def live(started: Live) -> Live:
    started.sink.clear()
    started.executor.misfortunes.clear()
    return started


@pytest.fixture(scope="module")
def one_process(three: UnitSpec) -> dict[str, dict[str, list[int]]]:
    """Tokens of an in-process unit, the reference of every other: sampled, and greedy."""
    tokens = {}
    for name, sampling in (("sampled", SAMPLED), ("greedy", greedy(NUM_TOKENS))):
        asked = asked_of(three)
        with running(replace(three, partition="none")) as (unit, sink):
            submit(unit, asked, sampling, seeded=True)
            sink.wait_for_ends(len(asked))
            check_lengths(sink, asked, NUM_TOKENS)
            check_nothing_leaks(unit)
        tokens[name] = sink.tokens
    return tokens


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sampled", *slow("greedy")])
def test_child_processes_and_one_process_agree(
    live: Live, three: UnitSpec, one_process: dict[str, dict[str, list[int]]], how: str
) -> None:
    sampling = SAMPLED if how == "sampled" else greedy(NUM_TOKENS)
    assert live.run(asked_of(three), sampling) == one_process[how]
    assert live.executor.misfortunes == []


def test_a_prefill_worker_killed_in_a_job_changes_no_token(
    live: Live, three: UnitSpec, one_process: dict[str, dict[str, list[int]]]
) -> None:
    asked = asked_of(three)
    victim = live.workers[0]
    os.kill(victim, signal.SIGSTOP)
    submit(live.unit, asked, SAMPLED, seeded=True)
    live.executor.wait_for_job_on(0)
    os.kill(victim, signal.SIGKILL)
    assert live.finish(asked) == one_process["sampled"]
    assert [type(outcome) for outcome in live.executor.misfortunes] == [JobFailed]
    wait_until_gone([victim])


def test_a_decode_worker_killed_in_a_job_changes_no_token(
    live: Live, three: UnitSpec, one_process: dict[str, dict[str, list[int]]]
) -> None:
    asked = asked_of(three)
    victim = live.workers[1]
    submit(live.unit, asked, SAMPLED, seeded=True)
    live.sink.wait_for_tokens(next(iter(asked)), 3)
    os.kill(victim, signal.SIGSTOP)
    live.executor.wait_for_job_on(1)
    os.kill(victim, signal.SIGKILL)
    assert live.finish(asked) == one_process["sampled"]
    assert [type(outcome) for outcome in live.executor.misfortunes] == [JobFailed]
    wait_until_gone([victim])


def test_an_owner_killed_in_a_job_changes_no_token(
    live: Live, three: UnitSpec, one_process: dict[str, dict[str, list[int]]]
) -> None:
    asked = asked_of(three)
    owner, workers = live.executor.owner_pid, live.workers
    submit(live.unit, asked, SAMPLED, seeded=True)
    live.sink.wait_for_tokens(next(iter(asked)), 3)
    os.kill(workers[1], signal.SIGSTOP)
    live.executor.wait_for_job_on(1)
    os.kill(owner, signal.SIGKILL)
    assert live.finish(asked) == one_process["sampled"]
    assert OwnerLost in [type(outcome) for outcome in live.executor.misfortunes]
    assert live.executor.owner_pid != owner
    wait_until_gone([owner, *workers])


def test_workers_that_die_idle_are_replaced(
    live: Live, three: UnitSpec, one_process: dict[str, dict[str, list[int]]]
) -> None:
    before = live.workers
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    wait_until_gone(before)
    assert live.run(asked_of(three), SAMPLED) == one_process["sampled"]


def test_abort_while_running_frees_blocks(live: Live, three: UnitSpec) -> None:
    asked = asked_of(three)
    submit(live.unit, asked, greedy(200))
    live.sink.wait_for_tokens(next(iter(asked)), 3)
    for request_id in asked:
        live.unit.abort(request_id)
    live.sink.wait_for_ends(len(asked))
    assert {live.sink.reason(request_id) for request_id in asked} == {FinishReason.ABORT}
    check_nothing_leaks(live.unit)


def test_close_leaves_no_process(tiny: ModelBuilder) -> None:
    spec = spec_of([tiny("llama")])
    executor = ProcessExecutor(spec)
    with running(spec, executor) as (unit, sink):
        submit(unit, asked_of(spec), greedy(200))
        processes = [executor.owner_pid, *workers_of(executor.owner_pid, 2)]
        for pid in processes:  # a group of their own, and our session, or priorities would be void
            assert (os.getpgid(pid), os.getsid(pid)) == (executor.owner_pid, os.getsid(0))
    assert {sink.reason(request_id) for request_id in asked_of(spec)} == {FinishReason.ABORT}
    wait_until_gone(processes)


UNIT = """
import sys, time
from pathlib import Path
from muxcluster.channel.codec import decode
from muxcluster.engine.executor import JobDone, JobFailed, Outcome, OwnerLost
from muxcluster.engine.processes.executor import ProcessExecutor

executor = ProcessExecutor(decode(Path(sys.argv[1]).read_bytes()).spec)
executor.start()
sys.stdout.write(f"{executor.owner_pid}\\n")
sys.stdout.flush()
time.sleep(60)
"""


@pytest.mark.slow
def test_workers_and_owner_die_with_the_unit(tiny: ModelBuilder, tmp_path: Path) -> None:
    """A unit that is killed can say nothing: its ends of all streams close, that is all."""
    spec = tmp_path / "spec"
    spec.write_bytes(encode(Start(spec_of([tiny("llama")]))))
    command = [sys.executable, "-c", UNIT, str(spec)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as unit:
        assert unit.stdout is not None
        owner = int(unit.stdout.readline())
        processes = [owner, *workers_of(owner, 2)]
        unit.kill()
        unit.wait()
        wait_until_gone(processes)


@pytest.fixture
def corrupt(tiny: ModelBuilder, tmp_path: Path) -> Iterator[Path]:
    """A model whose weights file is cut in half."""
    directory = tmp_path / "cut"
    directory.mkdir()
    for file in tiny("llama").iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    yield directory


@pytest.mark.parametrize("partition", [*slow("threads"), "none"])
def test_corrupt_weights_surface_as_load_error(corrupt: Path, partition: str) -> None:
    unit = Unit(spec_of([corrupt], partition=partition), lambda deltas: None)
    with pytest.raises(LoadError, match=r"model\.safetensors"):
        unit.start()
    unit.close()


def test_an_owner_that_dies_loading_is_reported(
    three: UnitSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nonexistent")
    with pytest.raises(EngineFailure, match="died loading"):
        Unit(three, lambda deltas: None).start()


@pytest.mark.slow
def test_a_start_that_fails_leaves_no_process(
    corrupt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nobody has called `close` yet."""
    owners: list[OwnerLink] = []
    original = ForkLauncher.owner

    def remembered(launcher: ForkLauncher, patience: Patience) -> OwnerLink:
        owners.append(original(launcher, patience))
        return owners[-1]

    monkeypatch.setattr(ForkLauncher, "owner", remembered)
    executor = ProcessExecutor(spec_of([corrupt]))
    with pytest.raises(LoadError, match=r"model\.safetensors"):
        executor.start()
    (owner,) = owners
    assert is_gone(owner.pid)
    executor.close()
