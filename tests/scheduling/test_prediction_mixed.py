"""Mixed jobs, against truths in which the parts share what they may: cost, half, or bandwidth."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.core.job import Job, Phase
from muxcluster.scheduling.steptime.line import (
    JobWork,
    Line,
    each_mixed_s,
    mixed_s,
    part_within,
    work_of,
)
from muxcluster.scheduling.steptime.model import StepTimes
from tests.amounts import slow
from tests.scheduling.test_prediction import make

Truth = Callable[[JobWork], float]
Bounds = tuple[float, float]
DECODE = Line(0.01, 1e-4, 2e-7)
PREFILL = Line(0.002, 1.5e-4, 3e-8, floor_s=0.02)
FACTORS = st.builds(Line, st.floats(0.01, 10), st.floats(0.02, 20), st.floats(0.01, 10))
SECONDS = st.floats(0.0, 10.0)


def fixed_cost_once(work: JobWork) -> float:
    """A forward on CPUs: rows and prompt tokens cost the same, the rest is paid once."""
    attended = work.context + work.attention
    return 0.02 + 0.001 * (work.num_rows + work.num_tokens) + 1e-7 * attended


def larger_and_half_the_smaller(work: JobWork) -> float:
    """The simulator's formula."""
    parts = (
        DECODE.seconds(*work[:2]) if work.num_rows else 0.0,
        PREFILL.seconds(*work[2:]) if work.num_tokens else 0.0,
    )
    return max(parts) + min(parts) / 2


def roofline(work: JobWork) -> float:
    """Memory or compute, whichever is slower, for the whole forward."""
    memory_s = 0.012 + 2.5e-7 * (work.context + 0.01 * work.attention)
    attended = work.context + work.attention
    return max(memory_s, 0.001 + 6e-5 * (work.num_rows + work.num_tokens) + 2e-8 * attended)


BUDGETS = {fixed_cost_once: 64, larger_and_half_the_smaller: 512, roofline: 512}
"""Most tokens of a job, by truth."""
SEEDS = {
    fixed_cost_once: (Line(0.02, 0.001, 1e-7), Line(0.02, 0.001, 1e-7)),
    larger_and_half_the_smaller: (DECODE, PREFILL),
    roofline: (Line(0.012, 6e-7, 2.5e-7), Line(0.001, 6e-5, 2e-8, floor_s=0.012)),
}
"""Decode and prefill alone; of the roofline nearly so."""


class TrueSeed:
    """The lines of a truth."""

    def __init__(self, truth: Truth) -> None:
        self._decode, self._prefill = SEEDS[truth]

    def line(self, phase: Phase, model: str, share: float) -> Line | None:
        if phase is Phase.MIXED:
            return None
        return self._decode if phase is Phase.DECODE else self._prefill


def decodes(rng: random.Random, budget: int) -> Job:
    rows = [(rng.randint(10, 1000), 1) for _ in range(rng.randint(1, budget // 2))]
    return make(Phase.DECODE, rows)


def prefills(rng: random.Random, budget: int) -> Job:
    return make(Phase.PREFILL, [(rng.choice([0, 0, 256]), rng.randint(2, budget))])


def mixed(rng: random.Random, budget: int) -> Job:
    """Often a few prompt tokens, often as many as there is room for."""
    num_rows = rng.randint(1, budget // 2)
    room = budget - num_rows
    some = rng.randint(2, room)
    count = rng.choice([2, 3, max(2, room // 4), some, some, room, room])
    rows = [(rng.randint(10, 1000), 1) for _ in range(num_rows)]
    return make(Phase.MIXED, [*rows, (rng.choice([0, 0, 256]), count)])


class Taught:
    """Predictions of one truth, which is told with 5 % noise and some jobs ten times as long."""

    def __init__(
        self, truth: Truth, seed: int, *, is_seeded: bool = False, outliers: float = 0.0
    ) -> None:
        self.times = StepTimes(TrueSeed(truth) if is_seeded else None)
        self._truth, self._budget, self._outliers = truth, BUDGETS[truth], outliers
        self._rng = random.Random(seed)
        self._factor = 1.0

    def slow_down(self, factor: float) -> None:
        """From now on everything takes so many times as long."""
        self._factor *= factor

    def tell(self, make_job: Callable[[random.Random, int], Job], count: int) -> None:
        for _ in range(count):
            job = make_job(self._rng, self._budget)
            off = 10 if self._rng.random() < self._outliers else 1
            off *= self._factor * self._rng.uniform(0.95, 1.05)
            self.times.observe(job, off * self._truth(work_of(job)))

    def errors(self, make_job: Callable[[random.Random, int], Job]) -> list[float]:
        """Of 150 jobs never told of: predicted / true - 1."""
        rng = random.Random(1000)
        works = [work_of(make_job(rng, self._budget)) for _ in range(150)]
        return [self._off(work) for work in works]

    def _off(self, work: JobWork) -> float:
        return self.times.of("m", 1.0).job_s(work) / (self._factor * self._truth(work)) - 1


def check(
    truth: Truth, alone: tuple[int, int], bounds: tuple[Bounds, Bounds], **how: bool | float
) -> None:
    """alone: decode and prefill jobs before the mixed ones. bounds: mean error and bias after 20
    mixed jobs and after 60, of 5 seeds together."""
    found: tuple[list[float], list[float]] = [], []
    for seed in range(5):
        taught = Taught(truth, seed, **how)
        taught.tell(decodes, alone[0])
        taught.tell(prefills, alone[1])
        for errors, count in zip(found, (20, 40), strict=True):
            for _ in range(count // 4):
                taught.tell(mixed, 4)
                taught.tell(decodes, 2 if alone[0] else 0)
            errors += taught.errors(mixed)
    for errors, (most, most_bias) in zip(found, bounds, strict=True):
        assert np.abs(errors).mean() < most
        assert abs(np.mean(errors)) < most_bias


OWN = [(40, 40), (40, 0), *slow(((40, 3),), ((0, 40),))]
SEEDED = {
    fixed_cost_once: ((0.04, 0.02), (0.03, 0.02)),
    larger_and_half_the_smaller: ((0.02, 0.02), (0.02, 0.02)),
    roofline: ((0.05, 0.03), (0.045, 0.025)),
}
UNSEEDED = {
    fixed_cost_once: ((0.1, 0.04), (0.035, 0.02)),
    larger_and_half_the_smaller: ((0.1, 0.04), (0.08, 0.03)),
    roofline: ((0.08, 0.04), (0.06, 0.03)),
}
ONLY_MIXED = {
    fixed_cost_once: ((0.12, 0.08), (0.06, 0.04)),
    larger_and_half_the_smaller: ((0.15, 0.09), (0.09, 0.05)),
    roofline: ((0.14, 0.08), (0.1, 0.06)),
}


@pytest.mark.parametrize("truth", BUDGETS)
@pytest.mark.parametrize("alone", [*OWN, (0, 0)])
def test_parts_that_are_known(truth, alone) -> None:
    check(truth, alone, SEEDED[truth], is_seeded=True)


@pytest.mark.parametrize("truth", BUDGETS)
@pytest.mark.parametrize("alone", OWN)
@pytest.mark.parametrize("outliers", [0.0, 0.02])
def test_parts_that_own_jobs_told_of(truth, alone, outliers) -> None:
    check(truth, alone, UNSEEDED[truth], outliers=outliers)


@pytest.mark.parametrize("truth", BUDGETS)
def test_nothing_but_mixed_jobs_ever(truth) -> None:
    check(truth, (0, 0), ONLY_MIXED[truth])


def test_after_8_jobs_only_mixed_ones_are_predicted_at_all() -> None:
    taught = Taught(fixed_cost_once, 0)
    taught.tell(mixed, 7)
    assert set(taught.errors(mixed)) == {-1.0}
    taught.tell(mixed, 1)
    assert np.abs(taught.errors(mixed)).mean() < 0.4
    assert min(taught.errors(prefills)) > -0.8
    assert min(taught.errors(decodes)) > -0.8


def test_prefill_alone_is_learnt_from_mixed_jobs_where_the_fixed_cost_is_shared() -> None:
    taught = Taught(fixed_cost_once, 1)
    taught.tell(decodes, 40)
    taught.tell(mixed, 60)
    assert np.abs(taught.errors(prefills)).mean() < 0.12


def test_mixed_jobs_leave_prefill_that_own_jobs_confirmed() -> None:
    times = Taught(larger_and_half_the_smaller, 2, is_seeded=True)
    times.tell(prefills, 8)
    before = times.errors(prefills)
    times.tell(mixed, 20)
    assert times.errors(prefills) == before
    assert times.errors(decodes) == pytest.approx([0.0] * 150)


@pytest.mark.parametrize("truth", BUDGETS)
def test_a_slower_machine_is_followed(truth) -> None:
    taught = Taught(truth, 3)
    taught.tell(decodes, 40)
    taught.tell(mixed, 150)
    taught.slow_down(1.5)
    for _ in range(30):
        taught.tell(decodes, 1)
        taught.tell(mixed, 2)
    assert np.abs(taught.errors(mixed)).mean() < 0.12


WORKS = st.builds(
    JobWork, st.integers(0, 99), st.integers(0, 10**5), st.integers(0, 512), st.integers(0, 10**6)
)


@settings(deadline=None)
@given(
    st.sampled_from(list(BUDGETS)),
    st.integers(8, 40),
    WORKS,
    st.floats(0.0, 0.5),
    st.lists(st.integers(1, 2000), max_size=30),
)
def test_after_mixed_jobs_alone_more_is_never_less_and_what_fits_fits(
    truth, count, work, seconds, lengths
) -> None:
    taught = Taught(truth, count)
    taught.tell(mixed, count)
    times = taught.times
    num_tokens = times.of("m", 1.0).prompt_tokens_within(seconds, work, 64, 512)
    for extra, fits in ((num_tokens, True), (num_tokens + 1, False)):
        if 0 < extra <= 512:
            assert (times.of("m", 1.0).job_s(work.with_prompt(64, extra)) <= seconds) == fits
    num_rows = times.of("m", 1.0).rows_within(seconds, work, np.array(lengths, dtype=np.int32))
    before_s = times.of("m", 1.0).job_s(work)
    for row, length in enumerate(lengths):
        work = work.with_rows(1, length)
        then_s = times.of("m", 1.0).job_s(work)
        assert then_s >= before_s
        assert (then_s <= seconds) == (row < num_rows)
        before_s = then_s


def test_what_both_share_is_paid_once() -> None:
    """By hand: parts of 5 and 3 s, of which 2 s are fixed."""
    assert mixed_s(Line(0.0, 1.0, 1.0), 5.0, 3.0, 2.0) == 5 + 3 - 2
    assert mixed_s(Line(0.0, 1.0, 1.0), 3.0, 5.0, 2.0) == 5 + 3 - 2
    assert mixed_s(Line(0.5, 1.0, 0.5), 5.0, 3.0, 2.0) == 5 + 3 / 2
    assert mixed_s(Line(0.25, 0.5, 2.0), 5.0, 3.0, 2.0) == 0.5 + 2.5 + 2
    assert mixed_s(Line(0.25, 0.5, 0.5), 5.0, 3.0, 4.0) == 5
    assert mixed_s(Line(1.0, 1.0, 0.5), 5.0, 3.0, 4.0) == 5 + 3


@given(FACTORS, SECONDS, SECONDS, SECONDS, SECONDS)
def test_a_larger_part_is_never_less_time(mix, first, more, second, fixed) -> None:
    found = mixed_s(mix, first, second, fixed)
    assert found >= max(first, second)
    assert mixed_s(mix, first + more, second, fixed) >= found * (1 - 1e-12)
    assert mixed_s(mix, second, first, fixed) == found


@given(FACTORS, st.lists(SECONDS, max_size=20), SECONDS, SECONDS)
def test_of_many_as_of_each(mix, parts, other, fixed) -> None:
    found = each_mixed_s(mix, np.array(parts), other, fixed).tolist()
    assert found == [mixed_s(mix, part, other, fixed) for part in parts]


@given(FACTORS, SECONDS, SECONDS, SECONDS)
def test_the_inverse_is_the_greatest_part_that_fits(mix, seconds, other, fixed) -> None:
    part = part_within(mix, seconds, other, fixed)
    if part < 0:
        assert mixed_s(mix, 0.0, other, fixed) >= seconds * (1 - 1e-9)
        return
    assert mixed_s(mix, part, other, fixed) <= seconds * (1 + 1e-9) + 1e-12
    assert mixed_s(mix, part * (1 + 1e-6) + 1e-6, other, fixed) >= seconds * (1 - 1e-9)
