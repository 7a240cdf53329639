"""Real workers that have the next job before the last one ends: the same tokens, whatever dies."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from muxcluster.core.job import Job, JobResult
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobDone, JobFailed, OwnerLost
from muxcluster.engine.sampling import results as pending
from muxcluster.engine.steps.device.captures import CallAgain
from muxcluster.engine.steps.pending_job import PendingJob
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.engine.unit import in_process as inprocess
from muxcluster.engine.unit.in_process import InProcessExecutor
from muxcluster.engine.unit.job_log import JobLog
from tests.engine.conftest import ModelBuilder
from tests.engine.fakes import FakeExecutor, expected, fake_spec, request
from tests.engine.live_units import (
    NUM_TOKENS,
    SAMPLED,
    Live,
    RecordingExecutor,
    asked_of,
    workers_of,
)
from tests.engine.processes.test_admissions import job_of
from tests.engine.units import check_nothing_leaks, greedy, running, spec_of, submit
from tests.oracles import GreedyOracle

pytestmark = pytest.mark.usefixtures("fast_children")

FAMILIES = ("llama", "opt")


class Following(RecordingExecutor):
    """Knows which jobs were sent while the one they follow was with its worker."""

    def __init__(self, spec: UnitSpec) -> None:
        super().__init__(spec)
        self.followers: list[Job] = []

    def launch(self, job: Job) -> None:
        if job.follows is not None:
            assert self.running[job.follows] == job.worker_id
            self.followers.append(job)
        super().launch(job)


class Overlapping(InProcessExecutor):
    """Knows how many jobs its device had at a time."""

    def __init__(self, spec: UnitSpec) -> None:
        super().__init__(spec)
        self.most_begun = 0

    def start(self) -> None:
        super().start()
        pipeline = self._pipeline
        assert pipeline is not None
        launch, end, now = pipeline._runner.launch, pipeline.end, 0

        def launched(job: Job) -> PendingJob:
            nonlocal now
            now += 1
            self.most_begun = max(self.most_begun, now)
            return launch(job)

        def ended() -> JobDone | JobFailed:
            nonlocal now
            outcome = end()
            now -= 1
            return outcome

        pipeline._runner.launch = launched
        pipeline.end = ended


def with_depth(spec: UnitSpec, depth: int) -> UnitSpec:
    return replace(spec, scheduler=replace(spec.scheduler, pipeline_depth=depth))


def deep(tiny: ModelBuilder, lane: str) -> UnitSpec:
    """A pool in which nobody is preempted: followers are sent where nothing is short."""
    spec = spec_of([tiny(family) for family in FAMILIES], lane=lane)
    return with_depth(spec, 2)


@pytest.fixture(scope="module", params=["adbs", pytest.param("mixed", marks=pytest.mark.slow)])
def live(request: pytest.FixtureRequest, tiny: ModelBuilder) -> Iterator[Live]:
    spec = deep(tiny, request.param)
    executor = Following(spec)
    with running(spec, executor) as (unit, sink):
        yield Live(executor, unit, sink)


@pytest.fixture(scope="module")
def reference(tiny: ModelBuilder) -> dict[str, list[int]]:
    """Sampled tokens of a unit in one process, one job at a time."""
    spec = replace(with_depth(deep(tiny, "adbs"), 1), partition="none")
    asked = asked_of(spec, 8)
    with running(spec) as (unit, sink):
        submit(unit, asked, SAMPLED, seeded=True)
        sink.wait_for_ends(len(asked))
        return sink.tokens


def refreshed(live: Live) -> Following:
    live.sink.clear()
    assert isinstance(live.executor, Following)
    live.executor.followers.clear()
    live.executor.misfortunes.clear()
    return live.executor


def test_tokens_are_those_of_one_job_at_a_time(live: Live, reference: dict[str, list[int]]) -> None:
    executor = refreshed(live)
    asked = asked_of(live.unit._spec, 8)
    assert live.run(asked, SAMPLED) == reference
    assert not executor.misfortunes


def test_greedy_tokens_are_those_of_hugging_face(live: Live, tiny: ModelBuilder) -> None:
    """One model after the other: alone, it is always a job ahead."""
    for family in FAMILIES:
        executor = refreshed(live)
        asked = {name: p for name, p in asked_of(live.unit._spec, 6).items() if family in name}
        live.run(asked, greedy(NUM_TOKENS))
        assert len(executor.followers) >= NUM_TOKENS // 2
        oracle = GreedyOracle(tiny(family))
        for name, prompt in asked.items():
            oracle.check(prompt, live.sink.tokens[name])
        assert oracle.num_near_ties == 0


@pytest.mark.parametrize("whom", ["worker", pytest.param("owner", marks=pytest.mark.slow)])
def test_a_process_killed_with_two_jobs_changes_no_token(
    live: Live, reference: dict[str, list[int]], whom: str
) -> None:
    executor = refreshed(live)
    spec = live.unit._spec
    asked = {name: p for name, p in asked_of(spec, 8).items() if FAMILIES[0] in name}
    decoder = max(worker.worker_id for worker in spec.workers)
    names = len(spec.workers)
    submit(live.unit, asked, SAMPLED, seeded=True)
    live.sink.wait_for_tokens(next(iter(asked)), 3)
    victim = workers_of(executor.owner_pid, names)[decoder]
    os.kill(victim, signal.SIGSTOP)
    executor.wait_for_job_on(decoder)
    os.kill(victim if whom == "worker" else executor.owner_pid, signal.SIGKILL)
    found = live.finish(asked)
    assert found == {name: reference[name] for name in asked}
    kinds = {type(outcome) for outcome in executor.misfortunes}
    assert kinds == {JobFailed if whom == "worker" else OwnerLost}


@pytest.mark.parametrize("lane", ["adbs", "temporal", "mixed"])
def test_a_unit_whose_jobs_fail_with_their_followers(lane: str) -> None:
    """Every seventh job fails, and the owner is lost once."""
    executor = FakeExecutor((["done"] * 6 + ["failed"]) * 4 + ["owner lost"])
    asked = {f"r{i}": list(range(3 + i)) for i in range(3)}
    with running(with_depth(fake_spec(lane=lane), 2), executor) as (unit, sink):
        for name, prompt in asked.items():
            unit.submit(request(name, "wide", prompt, 30))
        sink.wait_for_ends(len(asked))
        check_nothing_leaks(unit)
    assert executor.num_restarts == 1
    assert any(job.follows is not None for job in executor.launched)
    for name, prompt in asked.items():
        assert sink.tokens[name] == expected(prompt, 30)


def test_a_record_of_a_follower_starts_where_the_job_before_it_ended() -> None:
    log = JobLog()
    first = job_of(0, [1])
    second = replace(first, job_id=2, follows=1)
    log.start(first, 10.0)
    log.start(second, 10.1)
    for job, end_s in ((first, 11.0), (second, 12.5)):
        log.finish(_result(job), end_s)
    assert [(each.start_s, each.end_s) for each in log.take()] == [(10.0, 11.0), (11.0, 12.5)]


def _result(job: Job) -> JobResult:
    return JobResult(job.job_id, job.rows.table_rows, job.rows.counts, 0.0, {}, {})


@pytest.mark.parametrize("how", ["plain", "with the host"])
def test_steps_that_a_device_has_before_the_last_were_read(
    tiny: ModelBuilder, reference: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The steps of a GPU, on the CPU, whose results nobody looks at before they are asked for: two
    are begun at a time. Tokens that the host samples are not kept waiting for the next step."""
    monkeypatch.setattr(inprocess, "UnitRunner", partial(UnitRunner, capture=CallAgain()))
    monkeypatch.setattr(pending.Readback, "is_done", False)
    spec = replace(deep(tiny, "mixed"), partition="none")
    asked = {name: p for name, p in asked_of(spec, 8).items() if FAMILIES[0] in name}
    executor = Overlapping(spec)
    sampling = SAMPLED if how == "with the host" else greedy(NUM_TOKENS)
    with running(spec, executor) as (unit, sink):
        submit(unit, asked, sampling, seeded=True)
        sink.wait_for_ends(len(asked))
        check_nothing_leaks(unit)
    if how == "plain":
        assert executor.most_begun == 2
        oracle = GreedyOracle(tiny(FAMILIES[0]))
        for name, prompt in asked.items():
            oracle.check(prompt, sink.tokens[name])
    else:
        assert executor.most_begun == 1
        assert sink.tokens == {name: reference[name] for name in asked}
