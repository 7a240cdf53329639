"""A worker that is a thread: it begins the next job before the last one has ended."""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from muxcluster.core.job import Job
from muxcluster.engine.executor import JobDone
from muxcluster.engine.unit import in_process as inprocess
from muxcluster.engine.unit.in_process import InProcessExecutor
from muxcluster.engine.workers.pipeline import IDLE_S
from muxcluster.engine.workers.worker_thread import WorkerThread
from tests.engine.blocked import Blocked, BlockedRunner
from tests.engine.fakes import fake_spec
from tests.engine.processes.test_admissions import job_of

FIRST = job_of(0, [4])
SECOND = replace(FIRST, job_id=2, follows=1)


def job_id(told: object) -> int:
    assert isinstance(told, JobDone), told
    return told.result.job_id


def wait_for(is_so: Callable[[], bool]) -> None:
    for _ in range(2000):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come about")


def test_two_jobs_begin_and_are_told_in_order() -> None:
    runner, told = BlockedRunner(), queue.SimpleQueue[object]()
    thread = WorkerThread("thread", runner, told.put)
    thread.start()
    thread.give(FIRST)
    thread.give(SECOND)
    before, after = runner.begun.get(timeout=20.0), runner.begun.get(timeout=20.0)
    assert told.empty()
    after.may_end.set()
    before.may_end.set()
    assert [job_id(told.get(timeout=20.0)) for _ in range(2)] == [1, 2]
    thread.close()
    assert told.empty()


def test_a_process_that_must_end_says_so_and_runs_nothing_more() -> None:
    class Ending(BlockedRunner):
        def launch(self, job: Job) -> Blocked:
            raise SystemExit(job.job_id)

    told = queue.SimpleQueue[object]()
    thread = WorkerThread("thread", Ending(), told.put)
    thread.give(FIRST)
    thread.give(SECOND)
    thread.start()
    end = told.get(timeout=20.0)
    assert isinstance(end, SystemExit) and end.code == 1
    thread.close()
    assert told.empty()


def test_a_worker_records_what_jobs_wanted_when_it_has_none() -> None:
    runner, told = BlockedRunner(), queue.SimpleQueue[object]()
    runner.num_wanted = 3
    thread = WorkerThread("thread", runner, told.put)
    thread.start()
    thread.give(FIRST)
    begun = runner.begun.get(timeout=20.0)
    time.sleep(4 * IDLE_S)
    assert runner.num_idle == 0  # the device works
    begun.may_end.set()
    assert job_id(told.get(timeout=20.0)) == 1
    wait_for(lambda: runner.num_idle == 3)
    time.sleep(4 * IDLE_S)
    assert runner.num_idle == 3  # nothing more was wanted
    thread.give(replace(SECOND, follows=None))
    runner.begun.get(timeout=20.0).may_end.set()
    wait_for(lambda: runner.num_idle == 4)
    thread.close()


def test_one_process_records_between_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = BlockedRunner()
    runner.num_wanted = 2
    executor = InProcessExecutor(fake_spec())
    runner.warm_up = runner.record = lambda worker_id: None
    monkeypatch.setattr(inprocess, "UnitRunner", lambda spec: runner)
    executor.start()
    assert executor.wait(2 * IDLE_S) == []
    assert runner.num_idle == 0  # before the first job nothing is wanted
    executor.launch(FIRST)
    ending = threading.Thread(target=lambda: runner.begun.get(timeout=20.0).may_end.set())
    ending.start()
    assert [job_id(each) for each in executor.wait(20.0)] == [1]
    ending.join()
    wait_for(lambda: executor.wait(2 * IDLE_S) == [] and runner.num_idle == 2)
    assert executor.wait(2 * IDLE_S) == []
    assert runner.num_idle == 2  # nothing more was wanted


def test_one_process_begins_two_jobs_before_it_waits_for_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = BlockedRunner()
    runner.warm_up = runner.record = lambda worker_id: None
    monkeypatch.setattr(inprocess, "UnitRunner", lambda spec: runner)
    executor = InProcessExecutor(fake_spec())
    executor.start()
    executor.launch(FIRST)
    executor.launch(SECOND)
    executor.launch(replace(FIRST, job_id=3))

    def launch_and_end(job: Job) -> Blocked:
        blocked = BlockedRunner.launch(runner, job)
        if job is SECOND:  # else the first one never ends
            runner.begun.get().may_end.set()
        return blocked

    monkeypatch.setattr(runner, "launch", launch_and_end)
    (first,) = executor.wait(0.0)
    assert job_id(first) == 1
    runner.begun.get().may_end.set()
    (second,) = executor.wait(0.0)
    assert job_id(second) == 2
    assert runner.begun.empty(), "the third waits for the second, which had ended"
    executor.close()
