"""Processes that hang, requests that break their workers, storms of restarts; all for real."""

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from muxcluster.core.errors import NotReady
from muxcluster.core.events import FinishReason
from muxcluster.core.served import UnitState
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobFailed, OwnerLost
from muxcluster.engine.processes import owner_link as ownerlink
from muxcluster.engine.processes.liveness import Patience
from muxcluster.engine.processes.losses import MAX_IN_A_ROW
from tests.amounts import slow
from tests.engine.conftest import ModelBuilder
from tests.engine.faulty_owner import MARKS
from tests.engine.live_units import (
    NUM_TOKENS,
    SAMPLED,
    Live,
    RecordingExecutor,
    asked_of,
    wait_until_gone,
)
from tests.engine.units import check_lengths, check_nothing_leaks, running, spec_of, submit

ROOT = Path(__file__).resolve().parents[3]
IMPATIENT = Patience(silence_s=0.6, fork_s=1.5, load_s=60.0)
Tokens = dict[str, list[int]]


@pytest.fixture(scope="module")
def spec(tiny: ModelBuilder) -> UnitSpec:
    return spec_of([tiny(family) for family in ("llama", "qwen3", "opt")])


@pytest.fixture(scope="module")
def undisturbed(spec: UnitSpec) -> Tokens:
    """Tokens of a unit in one process, where nothing can be killed."""
    asked = asked_of(spec)
    with running(replace(spec, partition="none")) as (unit, sink):
        submit(unit, asked, SAMPLED, seeded=True)
        sink.wait_for_ends(len(asked))
        check_lengths(sink, asked, NUM_TOKENS)
    return sink.tokens


@pytest.fixture(scope="module")
def started(spec: UnitSpec) -> Iterator[Live]:
    """A unit whose workers break on marked prompts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(ownerlink, "OWNER_MODULE", "tests.engine.faulty_owner")
        executor = RecordingExecutor(spec, IMPATIENT)
        with running(spec, executor) as (unit, sink):
            yield Live(executor, unit, sink)


@pytest.fixture
def live(started: Live) -> Live:
    started.sink.clear()
    started.executor.misfortunes.clear()
    return started


def wait_for(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def misfortunes(live: Live) -> list[type]:
    return [type(outcome) for outcome in live.executor.misfortunes]


@pytest.mark.slow
@pytest.mark.parametrize("worker", [*slow(0), 1])
def test_a_worker_stopped_with_a_job_is_replaced(
    live: Live, spec: UnitSpec, undisturbed: Tokens, worker: int
) -> None:
    asked = asked_of(spec)
    victim = live.workers[worker]
    if worker == 0:
        os.kill(victim, signal.SIGSTOP)  # idle, and about to get its next job
    submit(live.unit, asked, SAMPLED, seeded=True)
    if worker == 1:
        live.sink.wait_for_tokens(next(iter(asked)), 3)
        os.kill(victim, signal.SIGSTOP)
    wait_for(lambda: live.unit.state is UnitState.RECOVERING)
    assert live.unit.stats().state is UnitState.RECOVERING
    assert live.finish(asked) == undisturbed
    assert misfortunes(live) == [JobFailed]
    assert "hung" in live.executor.misfortunes[0].message
    wait_until_gone([victim])
    wait_for(lambda: live.unit.state is UnitState.READY)
    assert live.unit.last_step_age_s() == 0.0


def test_an_idle_worker_that_is_stopped_is_replaced_before_its_next_job(
    live: Live, spec: UnitSpec, undisturbed: Tokens
) -> None:
    victims = live.workers
    for victim in victims:
        os.kill(victim, signal.SIGSTOP)
    wait_until_gone(victims)
    assert live.run(asked_of(spec), SAMPLED) == undisturbed
    assert misfortunes(live) == []


@pytest.mark.slow
def test_a_stopped_owner_is_replaced(live: Live, spec: UnitSpec, undisturbed: Tokens) -> None:
    asked = asked_of(spec)
    owner, workers = live.executor.owner_pid, live.workers
    submit(live.unit, asked, SAMPLED, seeded=True)
    live.sink.wait_for_tokens(next(iter(asked)), 3)
    os.kill(owner, signal.SIGSTOP)
    os.kill(workers[1], signal.SIGKILL)  # it is asked for a worker
    wait_for(lambda: live.unit.state is UnitState.RECOVERING)
    assert live.finish(asked) == undisturbed
    assert OwnerLost in misfortunes(live)
    wait_until_gone([owner, *workers])


@pytest.mark.slow
def test_an_idle_owner_that_is_stopped_is_replaced(live: Live) -> None:
    owner = live.executor.owner_pid
    os.kill(owner, signal.SIGSTOP)
    wait_until_gone([owner])
    wait_for(lambda: live.unit.state is UnitState.READY)
    assert misfortunes(live) == [OwnerLost]
    assert live.executor.owner_pid != owner


@pytest.mark.parametrize("fate", sorted(MARKS))
def test_a_poisonous_request_is_refused_and_harms_nobody(
    live: Live, spec: UnitSpec, undisturbed: Tokens, fate: str
) -> None:
    asked = asked_of(spec)
    poison = f"{spec.models[0].name}/poison"
    submit(live.unit, asked, SAMPLED, seeded=True)
    submit(live.unit, {poison: [3, *MARKS[fate], 5]}, SAMPLED)
    live.sink.wait_for_ends(len(asked) + 1)
    end = live.sink.ends[poison].finished
    assert end is not None
    assert (end.reason, end.code) == (FinishReason.ERROR, "poison_request")
    assert "poison request" in end.message
    assert live.sink.tokens.pop(poison) == []
    assert live.sink.tokens == undisturbed
    check_lengths(live.sink, asked, NUM_TOKENS)
    check_nothing_leaks(live.unit)
    assert len(live.executor.misfortunes) <= 3
    if fate == "raises":
        assert "an unlucky prompt" in end.message


def test_workers_killed_again_and_again_change_no_token(
    live: Live, spec: UnitSpec, undisturbed: Tokens
) -> None:
    asked = asked_of(spec)
    submit(live.unit, asked, SAMPLED, seeded=True)
    for kill in range(6):
        os.kill(live.workers[kill % 2], signal.SIGKILL)
        before = sum(map(len, live.sink.tokens.values()))
        wait_for(lambda before=before: sum(map(len, live.sink.tokens.values())) > before + 8)
    assert live.finish(asked) == undisturbed
    assert 1 <= len(live.executor.misfortunes) <= 6


def test_a_storm_of_restarts_ends_with_one_clear_error(live: Live, spec: UnitSpec) -> None:
    """The last test of this file: afterwards the unit is no more."""
    model = spec.models[0].name
    asked = {f"{model}/{i}": [3 + i, *MARKS["dies"], 5] for i in range(MAX_IN_A_ROW)}
    processes = [live.executor.owner_pid, *live.workers]
    submit(live.unit, asked, SAMPLED)
    live.sink.wait_for_ends(len(asked))
    wait_for(lambda: live.unit.state is UnitState.FAILED)
    ends = [delta.finished for delta in live.sink.ends.values()]
    assert {end.reason for end in ends if end} == {FinishReason.ERROR}
    assert {end.code for end in ends if end} == {"poison_request", "replica_lost"}
    lost = {end.message for end in ends if end and end.code == "replica_lost"}
    assert len(lost) == 1
    assert "keeps dying" in lost.pop()
    assert live.unit.last_step_age_s() == math.inf
    assert live.unit.stats().state is UnitState.FAILED
    with pytest.raises(NotReady, match="keeps dying"):
        submit(live.unit, {f"{model}/late": [1]}, SAMPLED)
    wait_until_gone(processes)
