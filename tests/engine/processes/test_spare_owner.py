"""The spare owner: it takes the place of a lost one at once, and is never left over."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.processes import executor as processes
from muxcluster.engine.processes.executor import ProcessExecutor
from muxcluster.engine.processes.launcher import ForkLauncher
from muxcluster.engine.processes.liveness import Patience
from tests.conftest import ROOT
from tests.engine.conftest import ModelBuilder
from tests.engine.fakes import PATIENCE_S
from tests.engine.live_units import asked_of, children, wait_until_gone
from tests.engine.units import check_lengths, greedy, running, spec_of, submit

IDLE = "mux-owner-idle"
LIGHT = "tests.engine.light_owner"
NUM_TOKENS = 40


@pytest.fixture
def spec(tiny: ModelBuilder) -> UnitSpec:
    return spec_of([tiny("llama")])


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkLauncher]:
    monkeypatch.chdir(ROOT)
    launcher = ForkLauncher(LIGHT)
    yield launcher
    launcher.close()


class LightSpares(ForkLauncher):
    """The first owner serves; spares are light."""

    def prepare(self, patience: Patience) -> None:
        self._module = LIGHT
        super().prepare(patience)


def idle_owner() -> int:
    """Process id of the spare, once it has imported what it needs."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := children(os.getpid()).get(IDLE)) is None:
        assert time.monotonic() < deadline, "no spare"
        time.sleep(0.05)
    return found


@pytest.mark.slow
def test_a_lost_owner_is_replaced_by_the_spare_and_the_tokens_stay(spec: UnitSpec) -> None:
    asked = asked_of(spec, 6)
    with running(spec) as (unit, sink):
        submit(unit, asked, greedy(NUM_TOKENS))
        sink.wait_for_ends(len(asked))
        expected = dict(sink.tokens)
    executor = ProcessExecutor(spec, Patience(silence_s=1.0))
    with running(spec, executor) as (unit, sink):
        executor.prepare()
        spare, lost = idle_owner(), executor.owner_pid
        submit(unit, asked, greedy(NUM_TOKENS))
        sink.wait_for_tokens(next(iter(asked)), 3)
        os.kill(lost, signal.SIGKILL)
        sink.wait_for_ends(len(asked))
        check_lengths(sink, asked, NUM_TOKENS)
        assert sink.tokens == expected
        assert executor.owner_pid == spare
    wait_until_gone([spare, lost])


@pytest.mark.slow
def test_a_spare_is_made_in_quiet_times_and_ends_with_the_unit(
    spec: UnitSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(processes, "SETTLED_S", 0.0)
    executor = ProcessExecutor(spec, Patience(silence_s=1.0), LightSpares())
    with running(spec, executor):
        spare = idle_owner()
        os.kill(spare, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_S
        while idle_owner() == spare:
            assert time.monotonic() < deadline, "a dead spare is replaced"
            time.sleep(0.05)
        spare = idle_owner()
    wait_until_gone([spare])


def test_a_dead_spare_is_not_taken(launcher: ForkLauncher) -> None:
    launcher.prepare(Patience())
    dead = idle_owner()
    os.kill(dead, signal.SIGKILL)
    wait_until_dead(dead)
    owner = launcher.owner(Patience())
    assert owner.pid != dead
    owner.kill()
    owner.stop()


def wait_until_dead(pid: int) -> None:
    """It may be a zombie: nobody has reaped it."""
    deadline = time.monotonic() + PATIENCE_S
    while IDLE in children(os.getpid()):
        assert time.monotonic() < deadline, f"{pid} lives"
        time.sleep(0.01)
