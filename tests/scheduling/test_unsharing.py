"""Sharing is kept where it gains and given up where it does not, whatever is believed of a GPU."""

from collections.abc import Mapping

import numpy as np
import pytest

from muxcluster.core.job import Job, Phase, Rows, TableDelta
from muxcluster.core.request import Slo
from muxcluster.scheduling.lanes.unsharing import SharingJudge
from muxcluster.scheduling.steptime.line import Line, work_of
from muxcluster.scheduling.steptime.model import StepTimes
from tests.scheduling.rig import Rig, model_spec, request, unit_spec

SATURATED, SPARE = 1.0, 0.0


class Machine(Rig):
    """Jobs whose seconds depend on their share as a GPU's do.

    saturation: 1, a job alone keeps all SMs busy: half of them, twice the time. 0, a quarter of the
    SMs is as good as all. loss: part by which jobs beside each other are slower.
    """

    saturation = SATURATED
    loss = 0.0
    slowness = 1.0  # of all jobs

    def seconds(self, job: Job) -> float:
        alone_s = 5 * super().seconds(job) * job.share
        loss = 1.0 + self.loss * (job.share < 1.0)
        return (
            self.slowness * loss * alone_s * (1.0 if self.saturation == SPARE else 1.0 / job.share)
        )


def machine(saturation: float, loss: float = 0.0, **policy) -> Machine:
    """Two models that are always busy for a while."""
    slo = Slo(1.0, 0.1)
    models = [model_spec(name, slo=slo, max_seqs=4) for name in ("a", "b")]
    rig = Machine(unit_spec(models, num_blocks=120, may_unshare=True, **policy), checks=False)
    rig.saturation, rig.loss = saturation, loss
    return rig


def keep_busy(rig: Machine, seconds: float) -> list[Job]:
    """New requests whenever fewer than eight are open; the jobs started meanwhile."""
    end_s, before = rig.now + seconds, len(rig.jobs)
    while rig.now < end_s:
        while rig.num_open < 8:
            name = "ab"[rig.num_accepted % 2]
            rig.add(request(f"r{rig.num_accepted}", name, num_prompt=20, num_output=8))
        rig.step()
    return rig.jobs[before:]


def is_sharing(rig: Machine) -> bool:
    return rig.scheduler.stats(rig.now, "unit").sharing.is_on


def shared(jobs: list[Job]) -> float:
    """Part of the jobs that had a part of the SMs."""
    return sum(job.share < 1.0 for job in jobs) / len(jobs)


@pytest.mark.parametrize("packing", ["priority", "hybrid"])
def test_a_gpu_that_jobs_leave_idle_is_shared(packing: str) -> None:
    rig = machine(SPARE, packing=packing)
    keep_busy(rig, 40.0)
    assert shared(keep_busy(rig, 20.0)) > 0.8
    assert rig.scheduler.stats(rig.now, "unit").sharing.gain > 1.4


@pytest.mark.parametrize("packing", ["priority", "hybrid"])
def test_a_saturated_gpu_is_not(packing: str) -> None:
    rig = machine(SATURATED, loss=0.1, packing=packing)
    jobs = keep_busy(rig, 60.0)
    assert 0.0 < shared(jobs) < 0.5, "it is tried"
    jobs = keep_busy(rig, 30.0)
    assert {job.phase for job in jobs[2:]} <= {Phase.MIXED}
    stats = rig.scheduler.stats(rig.now, "unit").sharing
    assert not stats.is_on
    assert 0.7 < stats.gain < 1 / 1.1 + 0.06


def test_sharing_is_tried_again_later() -> None:
    rig = machine(SATURATED, loss=0.1)
    keep_busy(rig, 60.0)
    assert not is_sharing(rig)
    rig.saturation = SPARE
    keep_busy(rig, 200.0)
    assert is_sharing(rig)


def test_a_machine_whose_speed_has_changed_is_measured_again() -> None:
    """It becomes faster when a trial begins: sharing looks good, until both ways are measured on
    the machine as it is now."""
    rig = machine(SATURATED, loss=0.1)
    rig.slowness = 1.5
    while not is_sharing(rig):
        keep_busy(rig, 0.2)
    rig.slowness = 1.0
    keep_busy(rig, 40.0)
    assert is_sharing(rig)
    keep_busy(rig, 60.0)
    assert not is_sharing(rig)


@pytest.mark.slow
def test_each_failed_trial_makes_the_next_one_later() -> None:
    rig = machine(SATURATED, loss=0.1)
    trials = [job.job_id for job in keep_busy(rig, 500.0) if job.share < 1.0]
    starts = [n for n, last in zip(trials, [-1000, *trials], strict=False) if n - last > 100]
    assert 2 <= len(starts) <= 4


def test_nobody_shares_before_it_is_known_what_jobs_take_alone() -> None:
    rig = machine(SPARE)
    jobs = keep_busy(rig, 2.0)
    assert {job.phase for job in jobs[:20]} == {Phase.MIXED}


def test_every_request_gets_its_tokens_while_the_unit_changes_its_mind() -> None:
    rig = machine(SATURATED, loss=0.1)
    rig._checks = True
    keep_busy(rig, 40.0)
    rig.run()
    assert len({len(rig.tokens[name]) for name in rig.ends}) == 1


def test_without_leave_it_always_shares() -> None:
    rig = Machine(unit_spec([model_spec("a"), model_spec("b")]))
    rig.loss = 0.5
    keep_busy(rig, 30.0)
    assert rig.scheduler.stats(rig.now, "unit").sharing is None
    assert shared(rig.jobs) > 0.5


def judged(mixed: Job, shared: list[Job], busy_s: float) -> SharingJudge:
    """A judge who has seen mixed jobs like `mixed`, and then `shared` ones, all in `busy_s`.

    A prefill takes 10 ms and 0.1 ms a token, a decode 10 ms: a mixed job pays the 10 ms once.
    """
    times = StepTimes(Known({Phase.PREFILL: (0.010, 0.0001), Phase.DECODE: (0.010, 0.0)}))
    judge = SharingJudge(times, learns=False)
    now = 0.0
    for _ in range(80):
        now += times.of("a", 1.0).job_s(work_of(mixed))
        judge.ended(mixed, 0.0, 0.0, now)
    assert judge.shares, "it is tried"
    for _ in range(70):
        for job in shared:
            now += busy_s / len(shared)
            judge.ended(job, 0.0, 0.0, now)
    return judge


class Known:
    """A seed of one model, the same at every share; mixed jobs pay the fixed cost once."""

    def __init__(self, lines: Mapping[Phase, tuple[float, float]]) -> None:
        self._lines = lines

    def line(self, phase: Phase, model: str, share: float) -> Line:
        if phase is Phase.MIXED:
            return Line(0.0, 1.0, 1.0)
        return Line(*self._lines[phase], 0.0)


def job_of(phase: Phase, counts: list[int]) -> Job:
    rows = np.arange(len(counts), dtype=np.int32)
    tables = TableDelta(rows[:0], rows[:0], np.zeros((0, 1), dtype=np.int32))
    share = 1.0 if phase is Phase.MIXED else 0.5
    counts_of = np.array(counts, dtype=np.int32)
    return Job(0, "a", phase, 0, share, Rows(rows, 0 * rows + 1, counts_of, rows >= 0), tables)


PREFILL, DECODE = job_of(Phase.PREFILL, [20]), job_of(Phase.DECODE, [1])


def test_small_prefills_do_not_make_sharing_look_good() -> None:
    """Shared jobs of 22 ms alone in 16 ms gain 1.4; mixed jobs, which had no prompts, gained
    nothing. Yet the same prompt and decode are one mixed job of 12 ms."""
    judge = judged(job_of(Phase.MIXED, [1, 1]), [DECODE, PREFILL], busy_s=0.016)
    assert judge.mixed.over_alone == pytest.approx(1.0)
    assert judge.shared.over_alone > 1.3 * judge.mixed.over_alone, "what was compared once"
    assert judge.shared.over_mixed == pytest.approx(12 / 16, rel=0.05)
    assert not judge.shares
    judge = judged(job_of(Phase.MIXED, [1, 1]), [DECODE, PREFILL], busy_s=0.010)
    assert judge.shares
    assert judge.stats().gain > judge.stats().mixed_gain > 1.0


def test_a_gain_of_other_batches_does_not_end_sharing() -> None:
    """Mixed jobs with four prompts gained 1.5. Then only decodes come: side by side they gain 1.25,
    as mixed jobs nothing."""
    judge = judged(job_of(Phase.MIXED, [1] + [20] * 4), [DECODE], busy_s=0.008)
    assert judge.mixed.over_alone > 1.2 * judge.shared.over_alone, "what was compared once"
    assert judge.shares
    assert judge.stats().mixed_gain == pytest.approx(1.0)
