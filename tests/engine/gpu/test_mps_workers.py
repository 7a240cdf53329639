"""The unit's `mps` workers with memory files in the place of CUDA IPC, and threads of SMs."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import Job, Phase, WorkerSpec
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import OwnerLost
from muxcluster.engine.gpu.mps.launcher import GPU_PATIENCE, MpsLauncher
from muxcluster.engine.processes.liveness import Patience
from muxcluster.engine.unit.unit import Unit
from tests.conftest import ROOT
from tests.engine.conftest import ModelBuilder
from tests.engine.fakes import Sink
from tests.engine.gpu.conftest import FakeControl, fake_control
from tests.engine.live_units import (
    NUM_TOKENS,
    SAMPLED,
    RecordingExecutor,
    asked_of,
    wait_until_gone,
    workers_of,
)
from tests.engine.units import check_lengths, check_nothing_leaks, running, spec_of, submit

WORKERS = (
    WorkerSpec(0, (0.5,), frozenset({Phase.PREFILL})),
    WorkerSpec(1, (0.5, 1.0), frozenset({Phase.DECODE})),
)
NUM_SEATS = 3

pytestmark = pytest.mark.slow
FAULTY = "tests.engine.gpu.faulty_owner"


class ShareRecorder(RecordingExecutor):
    """On the CPU what `MpsExecutor` is on a GPU; notes where jobs ran."""

    def __init__(
        self, spec: UnitSpec, module: str | None = None, patience: Patience = GPU_PATIENCE
    ) -> None:
        launcher = MpsLauncher("0") if module is None else MpsLauncher("0", module)
        super().__init__(spec, patience, launcher)
        self.places: set[tuple[int, float]] = set()

    def launch(self, job: Job) -> None:
        self.places.add((job.worker_id, job.share))
        super().launch(job)


@dataclass
class Running:
    executor: ShareRecorder
    unit: Unit
    sink: Sink
    control: FakeControl

    def tokens(self, asked: dict[str, list[int]]) -> dict[str, list[int]]:
        self.sink.clear()
        submit(self.unit, asked, SAMPLED, seeded=True)
        self.sink.wait_for_ends(len(asked))
        check_lengths(self.sink, asked, NUM_TOKENS)
        check_nothing_leaks(self.unit)
        return self.sink.tokens


@pytest.fixture(scope="module")
def spec(tiny: ModelBuilder) -> UnitSpec:
    made = spec_of([tiny("llama"), tiny("qwen3")])
    scheduler = replace(made.scheduler, may_unshare=False)
    return replace(made, workers=WORKERS, num_threads=2, scheduler=scheduler)


@pytest.fixture(scope="module")
def expected(spec: UnitSpec) -> dict[str, list[int]]:
    """Of an in-process unit."""
    asked = asked_of(spec, 8)
    with running(replace(spec, partition="none")) as (unit, sink):
        submit(unit, asked, SAMPLED, seeded=True)
        sink.wait_for_ends(len(asked))
        check_lengths(sink, asked, NUM_TOKENS)
    return sink.tokens


@pytest.fixture(scope="module")
def live(spec: UnitSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        control = fake_control(tmp_path_factory.mktemp("mps"), patch)
        executor = ShareRecorder(spec)
        with running(spec, executor) as (unit, sink):
            yield Running(executor, unit, sink, control)


def test_workers_that_map_the_owners_memory_say_the_same_tokens(
    live: Running, spec: UnitSpec, expected: dict[str, list[int]]
) -> None:
    assert live.tokens(asked_of(spec, 8)) == expected
    assert live.executor.misfortunes == []
    assert live.executor.places == {(0, 0.5), (1, 0.5), (1, 1.0)}


def test_each_worker_was_spawned_with_its_share_and_the_daemons_folders(live: Running) -> None:
    percentages = []
    for pid in workers_of(live.executor.owner_pid, NUM_SEATS):
        given = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        found = dict(entry.partition("=")[::2] for entry in given)
        percentages.append(found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
        assert found["CUDA_MPS_PIPE_DIRECTORY"].endswith("/0/pipe")
        assert found["CUDA_VISIBLE_DEVICES"] == "0"
    assert percentages == ["50", "50", "100"]
    owner = Path(f"/proc/{live.executor.owner_pid}/environ").read_bytes().decode()
    assert "CUDA_MPS_PIPE_DIRECTORY=" in owner
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in owner


def test_a_killed_worker_is_replaced_over_the_same_memory(
    live: Running, spec: UnitSpec, expected: dict[str, list[int]]
) -> None:
    victim = workers_of(live.executor.owner_pid, NUM_SEATS)[1]
    os.kill(victim, signal.SIGKILL)
    assert live.tokens(asked_of(spec, 8)) == expected
    assert not any(isinstance(each, OwnerLost) for each in live.executor.misfortunes)
    assert victim not in workers_of(live.executor.owner_pid, NUM_SEATS)


def test_nothing_is_left_after_close(
    live: Running, spec: UnitSpec, expected: dict[str, list[int]]
) -> None:
    processes = [live.executor.owner_pid, *workers_of(live.executor.owner_pid, NUM_SEATS)]
    live.unit.close()
    wait_until_gone(processes)
    assert live.control.asked()[-1] == "ask quit -t 5"
    assert live.control.asked().count("start") == 1


def faulty(
    spec: UnitSpec, patch: pytest.MonkeyPatch, fate: str, patience: Patience = GPU_PATIENCE
) -> ShareRecorder:
    patch.setenv("MUXCLUSTER_FATE", fate)
    patch.setenv("PYTHONPATH", f"{ROOT}")
    return ShareRecorder(spec, FAULTY, patience)


def test_a_share_that_had_no_effect_refuses_the_unit(
    spec: UnitSpec, control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = faulty(spec, monkeypatch, "whole")
    with pytest.raises(EngineFailure, match="SM shares 0.5 and 1 of worker 1 are equal or swapped"):
        executor.start()
    executor.close()
    assert control.asked()[-1] == "ask quit -t 5"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_lost_context_restarts_owner_daemon_and_workers_and_no_token_changes(
    spec: UnitSpec,
    control: FakeControl,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    expected: dict[str, list[int]],
) -> None:
    monkeypatch.setenv("MUXCLUSTER_FATE_DONE", str(tmp_path / "done"))
    executor = faulty(spec, monkeypatch, "lost")
    asked = asked_of(spec, 8)
    with running(spec, executor) as (unit, sink):
        submit(unit, asked, SAMPLED, seeded=True)
        sink.wait_for_ends(len(asked), timeout_s=500.0)
        check_lengths(sink, asked, NUM_TOKENS)
    assert sink.tokens == expected
    assert (tmp_path / "done").exists()
    assert OwnerLost in [type(each) for each in executor.misfortunes]
    assert [line for line in control.asked() if "get_default" not in line] == [
        *("start", "ask quit -t 5"),
        *("start", "ask quit -t 5"),
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_replaced_worker_may_take_longer_to_start_than_a_job(
    spec: UnitSpec,
    control: FakeControl,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    expected: dict[str, list[int]],
) -> None:
    """Its imports alone take longer than the shortest limit of a job, and silence, here."""
    monkeypatch.setenv("MUXCLUSTER_FATE_DONE", str(tmp_path / "done"))
    monkeypatch.setenv("MUXCLUSTER_START_S", "7")
    patience = replace(GPU_PATIENCE, silence_s=2.0, job_s=0.2)
    executor = faulty(spec, monkeypatch, "slow", patience)
    asked = asked_of(spec, 8)
    with running(spec, executor) as (unit, sink):
        for _ in range(2):
            sink.clear()
            submit(unit, asked, SAMPLED, seeded=True)
            sink.wait_for_ends(len(asked), timeout_s=300.0)
            check_lengths(sink, asked, NUM_TOKENS)
            assert sink.tokens == expected
            if not (tmp_path / "done").exists():
                (tmp_path / "done").touch()
                for victim in workers_of(executor.owner_pid, NUM_SEATS):
                    os.kill(victim, signal.SIGKILL)
    assert {each.message for each in executor.misfortunes} <= {"its worker process died"}
    assert len(executor.misfortunes) <= NUM_SEATS
