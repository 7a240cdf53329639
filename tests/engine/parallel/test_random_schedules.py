"""Random requests on units of fake ranks with arbitrary delays: the real scheduler decides, the
real bookkeeping of open jobs launches and combines.

No deadlock, every rank sees each worker's jobs in one order, rungs never sum past 1, every request
gets its tokens on every rank, and what breaks one of these is caught.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from muxcluster.channel.codec import Done
from muxcluster.core.job import Job, Phase, WorkerSpec
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobDone
from muxcluster.engine.parallel import open_jobs
from muxcluster.engine.parallel.answers import MemoryDiffers, OutOfStep
from muxcluster.engine.parallel.open_jobs import UnitJobs
from muxcluster.placement.execution import executions
from muxcluster.placement.hardware import GPUS
from tests.amounts import examples
from tests.engine.parallel.fake_ranks import EPSILON, FakeRanks, WrongMeeting, swap_a_pair
from tests.scheduling.rig import Rig, mixed_models, request, unit_spec

DEFAULT, ALL = 120, 10_000
SWAPPED = examples(150, 400)
STEPS = 100_000


class Stuck(Exception):
    """Requests are open, and nothing can happen any more."""


def drawn_unit(draw: random.Random) -> UnitSpec:
    models = mixed_models()[: draw.randint(1, 3)]
    on_gpus = executions(GPUS["A100-80GB"], draw.choice((1, 2)), draw.randint(2, 3))[0].workers
    on_cpus = tuple(WorkerSpec(worker_id, (0.5, 1.0)) for worker_id in (0, 1))
    lane = draw.choice(("adbs", "adbs", "adbs", "round-robin"))
    is_hybrid = draw.random() < 0.3
    return unit_spec(
        models,
        num_blocks=draw.choice((60, 200)) * 3,
        workers=draw.choice((on_gpus, on_gpus, on_cpus)),
        num_host_blocks=200 if is_hybrid else 0,
        lane=lane,
        may_unshare=lane == "adbs" and draw.random() < 0.5,
        packing="hybrid" if is_hybrid else "priority",
        pipeline_depth=draw.choice((1, 2)),
    )


class WideUnit:
    """A scheduler whose jobs run on fake ranks."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.spec = drawn_unit(self.draw)
        num_ranks = self.draw.choice((2, 2, 4))
        self.ranks = FakeRanks(self.spec, num_ranks, self.draw)
        self.jobs = UnitJobs([worker.worker_id for worker in self.spec.workers], num_ranks)
        self.rig = Rig(self.spec, seed, checks=False)
        self.requests = [
            request(
                f"r{number}",
                self.draw.choice(self.spec.models).name,
                self.draw.randint(1, 40),
                self.draw.randint(1, 12),
            )
            for number in range(self.draw.randint(2, 7))
        ]
        self.sent: list[Job] = []

    def run(self, meddle: Callable[[], None] = lambda: None) -> "WideUnit":
        """To the end of every request. meddle: called between any two steps."""
        coming = list(self.requests)
        for _ in range(STEPS):
            meddle()
            if coming and self.draw.random() < 0.2:
                self.rig.add(coming.pop())
                self.launch()
            elif not self.ranks.act(self.hear):
                if coming:
                    continue
                if not self.rig.num_open:
                    return self
                self.wake()
            self.rig.now += 0.001
        raise AssertionError("it does not end")

    def launch(self) -> bool:
        jobs = self.rig.scheduler.next_jobs(self.rig.now)
        for job in jobs:
            self.jobs.add(job)
            self.ranks.send(job)
            self.sent.append(job)
        return bool(jobs)

    def wake(self) -> None:
        wakeup_s = self.rig.scheduler.next_wakeup(self.rig.now)
        if wakeup_s is not None and not self.jobs:
            self.rig.now = max(self.rig.now, wakeup_s)
            if self.launch():
                return
        raise Stuck(f"{self.rig.num_open} requests are open")

    def hear(self, worker_id: int, rank: int, answer: Done) -> None:
        for job, outcome in self.jobs.of(worker_id).take(rank, answer):
            assert isinstance(outcome, JobDone)
            self.rig.take(self.rig.scheduler.complete(job, outcome.result, self.rig.now))
        assert self.jobs.share <= 1.0 + EPSILON
        self.launch()

    def check(self) -> None:
        self.rig.check_outputs(self.requests)
        self.rig.check_empty()
        self.rig.scheduler.check()
        assert self.ranks.num_waits_for_sms == 0
        assert self.ranks.most_held <= 1.0 + EPSILON
        for worker in self.spec.workers:
            sent = [job.job_id for job in self.sent if job.worker_id == worker.worker_id]
            assert self.ranks.orders(worker.worker_id) == [sent] * self.ranks.num_ranks


def check_schedules(seeds: range) -> None:
    num_shared = num_pipelined = num_copies = 0
    for seed in seeds:
        unit = WideUnit(seed).run()
        unit.check()
        num_shared += unit.ranks.most_together > 1
        num_pipelined += any(job.follows is not None for job in unit.sent)
        num_copies += any(job.copies for job in unit.sent)
    assert num_shared > len(seeds) // 4
    assert num_pipelined > len(seeds) // 20


def test_random_schedules_end_well_on_every_rank() -> None:
    check_schedules(range(DEFAULT))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_random_schedules_end_well_on_every_rank() -> None:
    check_schedules(range(DEFAULT, DEFAULT + ALL))


@pytest.mark.slow
def test_a_swap_of_two_jobs_on_one_rank_is_caught() -> None:
    """It is in the pipelined jobs of a worker, on one rank only."""
    num_swapped = 0
    for seed in range(SWAPPED):
        unit = WideUnit(seed)
        swapped: list[int] = []

        def meddle(unit: WideUnit = unit, swapped: list[int] = swapped) -> None:
            if not swapped:
                swapped += swap_a_pair(unit.ranks, rank=1)

        try:
            unit.run(meddle)
        except (WrongMeeting, OutOfStep, MemoryDiffers, AssertionError, Stuck):
            assert swapped
            num_swapped += 1
        else:
            assert not swapped, f"seed {seed}: nobody noticed"
    assert num_swapped > SWAPPED // 20


def greedy_unit(seed: int, monkeypatch: pytest.MonkeyPatch) -> WideUnit:
    """One whose prefill jobs ask for more SMs than are left: they wait for them on each rank."""
    unit = WideUnit(seed)
    next_jobs = unit.rig.scheduler.next_jobs

    def more(now: float) -> list[Job]:
        jobs = next_jobs(now)
        return [replace(job, share=0.8) if job.phase is not Phase.MIXED else job for job in jobs]

    monkeypatch.setattr(unit.rig.scheduler, "next_jobs", more)
    return unit


def test_shares_past_one_are_refused_at_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="would wait for SMs"):
        for seed in range(20):
            greedy_unit(seed, monkeypatch).run()


def test_shares_past_one_would_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why they are refused: two ranks give the SMs to different workers first."""
    monkeypatch.setattr(open_jobs, "_EPSILON", 10.0)
    monkeypatch.setattr(WideUnit, "hear", _hear_any)
    stuck = 0
    for seed in range(60):
        try:
            greedy_unit(seed, monkeypatch).run()
        except Stuck:
            stuck += 1
    assert stuck > 5


def _hear_any(self: WideUnit, worker_id: int, rank: int, answer: Done) -> None:
    for job, outcome in self.jobs.of(worker_id).take(rank, answer):
        assert isinstance(outcome, JobDone)
        self.rig.take(self.rig.scheduler.complete(job, outcome.result, self.rig.now))
    self.launch()
