"""The scheduler decides in the simulator as it did in the real engine, given the same durations.

A unit of real tiny models runs a trace on CPU while its scheduler is spied on. Then the simulator's
driver gets the same requests at the times at which the engine's loop took them in, and every job
lasts until the engine's loop heard of its end; it must launch the same jobs with the same rows.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from muxcluster.core.job import Job, JobResult
from muxcluster.core.request import Request
from muxcluster.core.unitspec import UnitSpec
from muxcluster.demo.models import build_model
from muxcluster.engine.unit import unit as engine_unit
from muxcluster.scheduling.scheduler import UnitScheduler
from muxcluster.sim.core import driver as sim_driver
from muxcluster.sim.core.driver import UnitDriver
from muxcluster.sim.core.timing import Work
from muxcluster.sim.core.unit import SimUnit
from tests.amounts import slow
from tests.engine.children.preloaded import fast_children, preloaded
from tests.engine.units import greedy, prompts, request_of, running, spec_of

__all__ = ["fast_children", "preloaded"]

pytestmark = pytest.mark.usefixtures("fast_children")


class Tape:
    """What a scheduler was told and what it launched.

    Everything that the engine told it between two calls of `next_jobs` is dated at the second one:
    the loop settles several outcomes before it asks again.
    """

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.adds: list[tuple[Request, float]] = []
        self.end_s: dict[int, float] = {}
        self._added: list[Request] = []
        self._ended: list[int] = []

    def add(self, request: Request) -> None:
        self._added.append(request)

    def complete(self, job: Job) -> None:
        self._ended.append(job.job_id)

    def launch(self, jobs: Sequence[Job], now: float) -> None:
        now = _exact(now)
        self.jobs += jobs
        self.adds += [(request, now) for request in self._added]
        self.end_s.update(dict.fromkeys(self._ended, now))
        self._added, self._ended = [], []


def _exact(now: float) -> float:
    """To the nearest microsecond or so, as a binary fraction: sums of such times do not round."""
    return round(now * 2**20) / 2**20


def spied(tape: Tape) -> type[UnitScheduler]:
    """The scheduler, writing to `tape`."""

    class Spied(UnitScheduler):
        def add(self, request: Request, now: float):
            tape.add(request)
            return super().add(request, now)

        def next_jobs(self, now: float) -> list[Job]:
            jobs = super().next_jobs(now)
            tape.launch(jobs, now)
            return jobs

        def complete(self, job: Job, result: JobResult, now: float):
            tape.complete(job)
            return super().complete(job, result, now)

    return Spied


class Recorded:
    """Durations from a tape: a job lasts until the loop of the engine dealt with its end."""

    def __init__(self, end_s: dict[int, float]) -> None:
        self._end_s = end_s

    def work(self, job: Job, now: float) -> Work:
        return Work(self._end_s.get(job.job_id, math.inf) - now, 0.0)

    def slowdown(self, draws: Sequence[float]) -> float:
        return 1.0


class Jobs:
    """A sink that ignores the requests and keeps the jobs as they are launched."""

    def __init__(self) -> None:
        self.num_ended = 0

    def first_token(self, request_id: str, now: float) -> None:
        assert request_id

    def end(self, event, now: float) -> None:
        self.num_ended += 1

    def launched(self, driver: UnitDriver, entries) -> None:
        assert all(entry.start_s == driver.now for entry in entries)

    def ran(self, driver: UnitDriver, entry) -> None:
        assert entry.num_steps == 1


def recorded(spec: UnitSpec, monkeypatch: pytest.MonkeyPatch) -> Tape:
    """One run of the real engine: bursts of requests, the later ones while it works."""
    tape = Tape()
    monkeypatch.setattr(engine_unit, "UnitScheduler", spied(tape))
    draw = random.Random(5)
    asked = [
        request_of(request_id, prompt, greedy(draw.randint(1, 24)))
        for model in spec.models
        for request_id, prompt in prompts(model.name, 8, model.vocab_size, shared=20).items()
    ]
    draw.shuffle(asked)
    with running(spec) as (unit, sink):
        for number, request in enumerate(asked):
            unit.submit(request)
            if number % 4 == 3:
                sink.wait_for_tokens(request.request_id, 1)
        sink.wait_for_ends(len(asked))
    assert len(tape.adds) == len(asked)
    return tape


def replayed(spec: UnitSpec, tape: Tape, monkeypatch: pytest.MonkeyPatch) -> Tape:
    """The simulator's driver with the requests, times and durations of `tape`."""
    again = Tape()
    sink = Jobs()
    monkeypatch.setattr(sim_driver, "UnitScheduler", spied(again))
    driver = UnitDriver(SimUnit(spec, {}), sink, Recorded(tape.end_s))
    for request, now in tape.adds:
        driver.advance(now)
        driver.submit(request, now)
    driver.advance(math.inf)
    assert sink.num_ended == len(tape.adds)
    return again


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("models")
    return [build_model(root / family, family, seed=1) for family in ("llama", "opt")]


@pytest.mark.parametrize(
    ("lane", "partition", "num_columns"),
    [
        ("adbs", "none", 24),
        *slow(("adbs", "threads", 200), ("round-robin", "none", 24)),
        ("temporal", "none", 200),
        ("mixed", "none", 24),
    ],
)
def test_the_same_jobs_with_the_same_rows(
    lane: str,
    partition: str,
    num_columns: int,
    directories: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = spec_of(directories, lane=lane, partition=partition, num_columns=num_columns, max_seqs=8)
    check_same(spec, monkeypatch)


@pytest.mark.parametrize(("lane", "num_columns"), [("adbs", 200), ("mixed", 34)])
def test_blocks_are_given_back_in_both(
    lane: str, num_columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All layers of one model have a window of 16 tokens, and every second one of the other."""
    directories = [build_model(tmp_path / name, name, seed=1) for name in ("mistral", "gemma2")]
    spec = spec_of(directories, lane=lane, partition="none", num_columns=num_columns, max_seqs=8)
    assert all(model.window == 16 for model in spec.models)
    models = tuple(replace(model, is_unordered=False) for model in spec.models)
    tape = check_same(replace(spec, models=models), monkeypatch)
    assert max(int(job.rows.starts.max()) for job in tape.jobs) > 3 * 16


def check_same(spec: UnitSpec, monkeypatch: pytest.MonkeyPatch) -> Tape:
    """Engine and simulator launch the same jobs; the engine's."""
    tape = recorded(spec, monkeypatch)
    again = replayed(spec, tape, monkeypatch)
    assert len(again.jobs) == len(tape.jobs) > 24
    for real, simulated in zip(tape.jobs, again.jobs, strict=True):
        for name in ("job_id", "model", "phase", "worker_id", "share", "max_steps"):
            assert getattr(simulated, name) == getattr(real, name), real
        for name in ("table_rows", "starts", "counts", "samples"):
            assert np.array_equal(getattr(simulated.rows, name), getattr(real.rows, name)), real
        assert [a.request_id for a in simulated.admissions] == [
            a.request_id for a in real.admissions
        ]
    assert again.adds == tape.adds
    return tape
