"""Workers that take longer to start than any job may take."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest

from muxcluster.core.served import UnitState
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobFailed
from muxcluster.engine.processes import owner_link as ownerlink
from muxcluster.engine.processes.liveness import Patience
from tests.conftest import ROOT
from tests.engine.conftest import ModelBuilder
from tests.engine.live_units import NUM_TOKENS, SAMPLED, Live, RecordingExecutor, asked_of
from tests.engine.processes.test_hung_processes import wait_for
from tests.engine.units import check_lengths, running, spec_of, submit

START_S = 7.0
PATIENCE = Patience(silence_s=2.0, fork_s=30.0, start_s=300.0, job_s=0.2)
"""A start of 7 s is to these as one of 70 s, or of 250, is to the limits of a real unit."""


@pytest.fixture(scope="module")
def spec(tiny: ModelBuilder) -> UnitSpec:
    return spec_of([tiny("llama")])


@pytest.fixture
def live(spec: UnitSpec, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("MUXCLUSTER_START_S", str(START_S))
    monkeypatch.setattr(ownerlink, "OWNER_MODULE", "tests.engine.slow_owner")
    executor = RecordingExecutor(spec, PATIENCE)
    with running(spec, executor) as (unit, sink):
        yield Live(executor, unit, sink)


@pytest.mark.slow
def test_a_replaced_worker_may_take_longer_to_start_than_a_job(live: Live, spec: UnitSpec) -> None:
    asked = asked_of(spec, 6)
    with running(replace(spec, partition="none")) as (unit, sink):
        submit(unit, asked, SAMPLED, seeded=True)
        sink.wait_for_ends(len(asked))
        check_lengths(sink, asked, NUM_TOKENS)
        expected = dict(sink.tokens)
    assert live.run(asked, SAMPLED) == expected  # from here on the jobs' durations are known
    live.sink.clear()
    victims = live.workers
    submit(live.unit, asked, SAMPLED, seeded=True)
    live.sink.wait_for_tokens(next(iter(asked)), 3)
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    wait_for(lambda: live.unit.state is UnitState.RECOVERING)
    assert live.finish(asked) == expected
    wait_for(lambda: live.unit.state is UnitState.READY)
    failed = [each for each in live.executor.misfortunes if isinstance(each, JobFailed)]
    assert len(live.executor.misfortunes) == len(failed) <= len(victims)
    assert {each.message for each in failed} <= {"its worker process died"}
