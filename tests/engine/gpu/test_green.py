"""The unit's `green` workers on the CPU: threads that overlap, with the tokens of one process."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pytest

from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import Phase, WorkerSpec
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobDone, JobFailed
from muxcluster.engine.gpu.context import CONTEXT_LOST, ContextLost
from muxcluster.engine.gpu.green import executor as green
from muxcluster.engine.gpu.green.executor import GreenExecutor
from muxcluster.engine.processes.rungs import WorkerRung
from muxcluster.engine.sampling.results import Ready, RowsResult
from muxcluster.engine.steps.pending_job import PendingJob
from tests.engine.conftest import ModelBuilder
from tests.engine.gpu.jobs import job_of
from tests.engine.live_units import NUM_TOKENS, SAMPLED, asked_of
from tests.engine.units import check_lengths, check_nothing_leaks, running, spec_of, submit

WORKERS = (
    WorkerSpec(0, (0.5, 1.0), frozenset({Phase.PREFILL})),
    WorkerSpec(1, (0.5, 1.0), frozenset({Phase.DECODE})),
)


def test_threads_over_one_memory_say_the_same_tokens(tiny: ModelBuilder) -> None:
    made = spec_of([tiny("llama"), tiny("opt")])
    spec = replace(made, workers=WORKERS)
    asked = asked_of(spec, 8)
    said = []
    for executor in (None, GreenExecutor(spec)):
        with running(replace(spec, partition="none"), executor) as (unit, sink):
            submit(unit, asked, SAMPLED, seeded=True)
            sink.wait_for_ends(len(asked))
            check_lengths(sink, asked, NUM_TOKENS)
            check_nothing_leaks(unit)
        said.append(sink.tokens)
    assert said[0] == said[1]


class FakeRunner:
    """Executes nothing; all runners share the memory of the first."""

    made: list[object] = []
    error: BaseException | None = None
    backends = ()

    def __init__(self, spec: UnitSpec, memory: object = None) -> None:
        self.memory = memory or object()
        self.made.append(self.memory)

    def waits(self, job) -> bool:
        return False

    def launch(self, job) -> PendingJob:
        if self.error is not None:
            raise self.error
        nothing = RowsResult(np.empty((1, 0), dtype=np.int32), {}, {}, np.empty(0, dtype=np.bool_))
        return PendingJob(job, 0.0, Ready(nothing))

    def record_next(self) -> bool:
        return False


@dataclass
class MeetingPart:
    """Work on it ends only when as much runs on another part."""

    barrier: threading.Barrier
    entries: list[WorkerRung]
    rung: WorkerRung

    @contextmanager
    def entered(self) -> Iterator[None]:
        self.entries.append(self.rung)
        self.barrier.wait(20.0)
        yield


class FakeParts:
    def __init__(self, num_together: int) -> None:
        self.barrier = threading.Barrier(num_together)
        self.entries: list[WorkerRung] = []
        self.num_closed = 0

    def open(self, rungs: Sequence[WorkerRung]) -> Mapping[int, MeetingPart]:
        return {rung.rung_id: MeetingPart(self.barrier, self.entries, rung) for rung in rungs}

    def close(self) -> None:
        self.num_closed += 1


@pytest.fixture
def spec(tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch) -> UnitSpec:
    monkeypatch.setattr(green, "UnitRunner", FakeRunner)
    monkeypatch.setattr(FakeRunner, "made", [])
    return replace(spec_of([tiny("llama")]), workers=WORKERS)


def outcomes_of(executor: GreenExecutor, count: int) -> list:
    outcomes: list = []
    while len(outcomes) < count:
        outcomes.extend(executor.wait(20.0))
    return outcomes


def test_jobs_of_different_workers_overlap_on_their_own_parts(spec: UnitSpec) -> None:
    parts = FakeParts(2)
    executor = GreenExecutor(spec, lambda spec: parts)
    executor.start()
    assert len(FakeRunner.made) == 4
    assert len(set(FakeRunner.made)) == 1
    executor.launch(job_of(0, 0.5, job_id=1))
    executor.launch(job_of(1, 1.0, job_id=2))
    outcomes = outcomes_of(executor, 2)
    assert {outcome.result.job_id for outcome in outcomes if isinstance(outcome, JobDone)} == {1, 2}
    assert {(rung.worker_id, rung.share) for rung in parts.entries} == {(0, 0.5), (1, 1.0)}
    executor.wake()
    assert executor.wait(None) == []
    executor.close()
    executor.close()
    assert parts.num_closed == 1


def test_a_job_that_raises_fails_alone(spec: UnitSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = GreenExecutor(spec, lambda spec: FakeParts(1))
    executor.start()
    monkeypatch.setattr(FakeRunner, "error", ValueError("no"))
    executor.launch(job_of(0, 0.5, job_id=5))
    (failed,) = outcomes_of(executor, 1)
    assert isinstance(failed, JobFailed)
    assert (failed.job_id, failed.worker_id, failed.message) == (5, 0, "ValueError: no")
    monkeypatch.setattr(FakeRunner, "error", None)
    executor.launch(job_of(0, 0.5, job_id=6))
    assert isinstance(outcomes_of(executor, 1)[0], JobDone)
    executor.close()


def test_a_lost_context_fails_the_unit(spec: UnitSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = GreenExecutor(spec, lambda spec: FakeParts(1))
    executor.start()
    monkeypatch.setattr(FakeRunner, "error", ContextLost("an illegal access"))
    executor.launch(job_of(0, 0.5))
    with pytest.raises(EngineFailure, match="context is lost: an illegal access"):
        outcomes_of(executor, 1)
    with pytest.raises(EngineFailure):
        executor.restart()
    executor.close()
    assert ContextLost("x").code == CONTEXT_LOST
