"""Before a unit is ready it tries jobs: what it learns, and that nobody sees a trace of them."""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from muxcluster.core.job import Job, Phase, WorkerSpec
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import Outcome
from muxcluster.engine.processes.executor import ProcessExecutor
from muxcluster.engine.unit.unit import Unit
from muxcluster.scheduling.steptime.line import JobWork
from tests.amounts import slow
from tests.engine.fakes import FakeExecutor, Sink, expected, fake_spec, request
from tests.engine.hybrid_units import hybrid_spec
from tests.engine.live_units import children
from tests.engine.units import check_nothing_leaks

pytestmark = pytest.mark.usefixtures("fast_children")

LADDER = (0.5, 1.0)
BOTH = (WorkerSpec(0, LADDER), WorkerSpec(1, LADDER))
SPECIAL = (
    WorkerSpec(0, LADDER, frozenset({Phase.PREFILL})),
    WorkerSpec(1, LADDER, frozenset({Phase.DECODE})),
)
ONE = (WorkerSpec(0, (1.0,)),)


class Hours:
    """A clock that jobs move."""

    s = 50.0

    def now(self) -> float:
        return self.s


class TimedExecutor(FakeExecutor):
    """Jobs take 20 ms and 1 ms a token on all the SMs, and of a new worker a second longer."""

    def __init__(self, clock: Hours, script: Sequence[str] = (), slowness: float = 1.0) -> None:
        super().__init__(script)
        self._clock, self._slowness = clock, slowness
        self._seen: set[int] = set()

    def seconds(self, job: Job) -> float:
        return self._slowness * (0.02 + 0.001 * int(job.rows.counts.sum())) / job.share

    def wait(self, timeout_s: float | None) -> Sequence[Outcome]:
        if self._queue:
            job = self._queue[0]
            self._clock.s += self.seconds(job) + float(job.worker_id not in self._seen)
            self._seen.add(job.worker_id)
        return super().wait(timeout_s)


def spec_with(workers: tuple[WorkerSpec, ...], lane: str, packing: str = "hybrid") -> UnitSpec:
    spec = fake_spec(num_columns=256, lane=lane)
    return replace(
        spec, workers=workers, scheduler=replace(spec.scheduler, packing=packing, token_budget=256)
    )


@pytest.mark.parametrize(
    ("lane", "workers"),
    [("mixed", ONE), ("temporal", ONE), ("adbs", BOTH), ("adbs", SPECIAL), ("mixed", BOTH)],
)
def test_times_are_known_when_the_unit_is_ready(lane: str, workers: tuple[WorkerSpec, ...]) -> None:
    clock = Hours()
    executor = TimedExecutor(clock)
    unit = Unit(spec_with(workers, lane), Sink(), clock, executor=executor)
    unit.start()
    try:
        times = unit._scheduler._times
        for share in workers[0].shares:
            for model in ("wide", "narrow"):
                assert times.of(model, share).decode_s(4, 200) == pytest.approx(
                    0.024 / share, rel=0.08
                )
                found = times.of(model, share).prefill_s(100, 5000)
                assert found == pytest.approx(0.12 / share, rel=0.08)
                if lane == "mixed":
                    found = times.of(model, share).job_s(JobWork(4, 200, 50, 1250))
                    assert found == pytest.approx(0.074 / share, rel=0.08)
        ran = {(job.worker_id, job.share) for job in executor.launched}
        assert ran == {(worker.worker_id, share) for worker in workers for share in worker.shares}
    finally:
        unit.close()


def test_nothing_is_left_of_it() -> None:
    clock, sink = Hours(), Sink()
    executor = TimedExecutor(clock)
    unit = Unit(spec_with(BOTH, "adbs"), sink, clock, executor=executor)
    unit.start()
    try:
        num_tried = len(executor.launched)
        assert num_tried > 60
        check_nothing_leaks(unit)
        stats = unit.stats()
        assert stats.jobs == ()
        assert stats.free_blocks == stats.num_blocks
        assert all(
            m.output_tokens == m.prompt_tokens == m.prefix_queries == 0 for m in stats.models
        )
        assert not sink.tokens
        times = unit._scheduler._times
        assert times.errors() == {}
        for name in ("a", "b", "c"):
            unit.submit(request(name, "wide", range(5, 45), 6))
        sink.wait_for_ends(3)
        assert all(sink.tokens[name] == expected(range(5, 45), 6) for name in ("a", "b", "c"))
        assert len(unit.stats().jobs) == len(executor.launched) - num_tried
        unit._scheduler.check()
    finally:
        unit.close()


@pytest.mark.parametrize("packing", ["priority", "fcfs", "round-robin"])
def test_who_needs_no_predictions_does_not_wait_for_them(packing: str) -> None:
    clock = Hours()
    executor = TimedExecutor(clock)
    unit = Unit(spec_with(ONE, "mixed", packing), Sink(), clock, executor=executor)
    unit.start()
    unit.close()
    assert executor.launched == []


@pytest.mark.parametrize("slowness", [1.0, 20.0])
def test_slow_models_are_tried_less(slowness: float) -> None:
    """Two seconds a model, what had begun by then, and the first jobs of each worker."""
    clock = Hours()
    executor = TimedExecutor(clock, slowness=slowness)
    unit = Unit(spec_with(ONE, "mixed"), Sink(), clock, executor=executor)
    unit.start()
    unit.close()
    longest = max(map(executor.seconds, executor.launched))
    assert clock.s - 50.0 < 1.0 + 2 * (2.0 + 3 * 2 * slowness * 0.04 + 6 * longest)
    times = unit._scheduler._times
    assert slowness > 1 or times.of("wide", 1.0).decode_s(1, 10) > 0


@pytest.mark.parametrize(
    "script",
    [
        ["failed"],
        ["done"] * 9 + ["failed", "failed"],
        ["failed"] * 3,
        ["done"] * 5 + ["owner lost"],
    ],
)
def test_losses_while_it_tries(script: list[str]) -> None:
    clock, sink = Hours(), Sink()
    executor = TimedExecutor(clock, script)
    unit = Unit(spec_with(ONE, "mixed"), sink, clock, executor=executor)
    unit.start()
    try:
        assert executor.num_restarts == script.count("owner lost")
        unit.submit(request("a", "narrow", range(9), 4))
        sink.wait_for_ends(1)
        assert sink.tokens["a"] == expected(range(9), 4)
    finally:
        unit.close()


class KilledExecutor(ProcessExecutor):
    """Kills a process of its own once a few jobs were launched."""

    victim = "mux-worker-0"
    num_launched = num_killed = 0

    def launch(self, job: Job) -> None:
        super().launch(job)
        self.num_launched += 1
        if self.num_launched == 6:
            pid = self.owner_pid
            is_owner = self.victim == "owner"
            os.kill(pid if is_owner else children(pid)[self.victim], signal.SIGKILL)
            self.num_killed += 1


@pytest.mark.parametrize("victim", [*slow("mux-worker-0"), "owner"])
def test_a_process_killed_while_it_tries(directories: Mapping[str, Path], victim: str) -> None:
    spec = hybrid_spec(directories, partition="threads")
    executor = KilledExecutor(spec)
    executor.victim = victim
    sink = Sink()
    unit = Unit(spec, sink, executor=executor)
    unit.start()
    try:
        assert executor.num_killed == 1
        name = spec.models[0].name
        unit.submit(request("a", name, range(3, 20), 5))
        sink.wait_for_ends(1)
        assert len(sink.tokens["a"]) == 5
    finally:
        unit.close()
