"""Worker processes: same tokens as in one process, whoever is killed, and none is left over."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from muxcluster.core.errors import EngineFailure, LoadError
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.processes import ProcessExecutor
from muxcluster.engine.unit import Unit
from tests.engine.conftest import ModelBuilder
from tests.engine.units import (
    check_lengths,
    check_nothing_leaks,
    greedy,
    prompts,
    running,
    spec_of,
    submit,
)

ROOT = Path(__file__).resolve().parents[2]
THREE = ("llama", "qwen3", "opt")
NUM_TOKENS = 20
SAMPLED = SamplingParams(
    temperature=0.9,
    top_k=40,
    top_p=0.95,
    repetition_penalty=1.1,
    frequency_penalty=0.2,
    max_tokens=NUM_TOKENS,
    ignore_eos=True,
)


def asked_of(spec: UnitSpec, count: int = 4) -> dict[str, list[int]]:
    asked: dict[str, list[int]] = {}
    for model in spec.models:
        asked |= prompts(model.name, count, model.vocab_size)
    return asked


def children(pid: int) -> list[int]:
    """Process ids of the children of `pid`, oldest first."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return sorted(found)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def wait_until_gone(pids: list[int], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if all(is_gone(pid) for pid in pids):
            return
        time.sleep(0.02)
    raise AssertionError(f"still there: {[pid for pid in pids if not is_gone(pid)]}")


def tokens_of(spec: UnitSpec, sampling: SamplingParams) -> dict[str, list[int]]:
    """Output of an undisturbed run."""
    asked = asked_of(spec)
    with running(spec) as (unit, sink):
        submit(unit, asked, sampling, seeded=True)
        sink.wait_for_ends(len(asked))
        check_lengths(sink, asked, NUM_TOKENS)
        check_nothing_leaks(unit)
    return sink.tokens


@pytest.fixture(scope="module")
def three(tiny: ModelBuilder) -> UnitSpec:
    return spec_of([tiny(family) for family in THREE])


@pytest.fixture(scope="module")
def sampled(three: UnitSpec) -> dict[str, list[int]]:
    """Tokens of the in-process run: the reference of every other."""
    return tokens_of(replace(three, partition="none"), SAMPLED)


def test_child_processes_and_one_process_agree(
    three: UnitSpec, sampled: dict[str, list[int]]
) -> None:
    assert tokens_of(three, SAMPLED) == sampled
    assert tokens_of(three, greedy(NUM_TOKENS)) == tokens_of(
        replace(three, partition="none"), greedy(NUM_TOKENS)
    )


@pytest.mark.parametrize("victim", ["prefill worker", "decode worker", "both", "owner"])
def test_a_killed_process_changes_no_token(
    three: UnitSpec, sampled: dict[str, list[int]], victim: str
) -> None:
    asked = asked_of(three)
    executor = ProcessExecutor(three)
    with running(three, executor) as (unit, sink):
        owner = executor.owner_pid
        workers = children(owner)
        assert len(workers) == len(three.workers)
        submit(unit, asked, SAMPLED, seeded=True)
        sink.wait_for_tokens(next(iter(asked)), 3)
        victims = {
            "prefill worker": workers[:1],
            "decode worker": workers[1:],
            "both": workers,
            "owner": [owner],
        }[victim]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        sink.wait_for_ends(len(asked))
        check_lengths(sink, asked, NUM_TOKENS)
        check_nothing_leaks(unit)
        if victim == "owner":
            assert executor.owner_pid != owner
        wait_until_gone([*victims, *workers] if victim == "owner" else victims)
    assert sink.tokens == sampled


def test_a_worker_that_dies_idle_is_replaced(three: UnitSpec) -> None:
    asked = asked_of(three, count=1)
    executor = ProcessExecutor(three)
    with running(three, executor) as (unit, sink):
        before = children(executor.owner_pid)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        wait_until_gone(before)
        submit(unit, asked, greedy(NUM_TOKENS))
        sink.wait_for_ends(len(asked))
        check_lengths(sink, asked, NUM_TOKENS)


def test_close_leaves_no_process(three: UnitSpec) -> None:
    executor = ProcessExecutor(three)
    with running(three, executor) as (unit, _):
        submit(unit, asked_of(three), greedy(200))
        processes = [executor.owner_pid, *children(executor.owner_pid)]
    wait_until_gone(processes)


UNIT = """
import sys, time
from pathlib import Path
from tests.engine.units import spec_of
from muxcluster.engine.processes import ProcessExecutor

executor = ProcessExecutor(spec_of([Path(sys.argv[1])]))
executor.start()
sys.stdout.write(f"{executor.owner_pid}\\n")
sys.stdout.flush()
time.sleep(60)
"""


def test_workers_and_owner_die_with_the_unit(tiny: ModelBuilder) -> None:
    """A unit that is killed can say nothing: its ends of all streams close, that is all."""
    command = [sys.executable, "-c", UNIT, str(tiny("llama"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as unit:
        assert unit.stdout is not None
        owner = int(unit.stdout.readline())
        processes = [owner, *children(owner)]
        assert len(processes) > 1
        unit.kill()
        unit.wait()
        wait_until_gone(processes)


def test_abort_while_running_frees_blocks(three: UnitSpec) -> None:
    asked = asked_of(three)
    with running(three) as (unit, sink):
        submit(unit, asked, greedy(200))
        sink.wait_for_tokens(next(iter(asked)), 3)
        for request_id in asked:
            unit.abort(request_id)
        sink.wait_for_ends(len(asked))
        check_nothing_leaks(unit)


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


@pytest.mark.parametrize("partition", ["threads", "none"])
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
