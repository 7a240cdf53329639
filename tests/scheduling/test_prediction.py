"""Predicted seconds of jobs, against known truths and the inverse against the forward."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.core.job import Job, Phase, Rows, SlotCopies, TableDelta
from muxcluster.scheduling.steptime.learn import CopyTimes
from muxcluster.scheduling.steptime.line import JobWork, Line, work_of
from muxcluster.scheduling.steptime.model import StepTimes

DECODE = Line(0.01, 1e-4, 2e-7)
PREFILL = Line(0.002, 1.5e-4, 3e-8, floor_s=0.02)
WORKS = st.builds(
    JobWork, st.integers(0, 200), st.integers(0, 10**6), st.integers(0, 4096), st.integers(0, 10**7)
)


class FixedSeed:
    """The lines above at share 1, in inverse proportion to the share."""

    def line(self, phase: Phase, model: str, share: float) -> Line | None:
        if model != "m" or phase is Phase.MIXED:
            return None
        return (DECODE if phase is Phase.DECODE else PREFILL).scaled((1 / share,) * 4)


def ints(values) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def make(phase, rows, *, model="m", share=1.0, max_steps=1, copies=()) -> Job:
    """rows: (start, count) of each."""
    starts, counts = zip(*rows, strict=True)
    table = TableDelta(ints([]), ints([]), np.zeros((0, 1), dtype=np.int32))
    made = Rows(ints(range(len(rows))), ints(starts), ints(counts), np.ones(len(rows), bool))
    return Job(0, model, phase, 0, share, made, table, max_steps=max_steps, copies=copies)


def decodes(rng: random.Random, **where) -> Job:
    rows = [(rng.randint(10, 2000), 1) for _ in range(rng.randint(1, 100))]
    return make(Phase.DECODE, rows, **where)


def prefills(rng: random.Random, **where) -> Job:
    rows = [(rng.choice([0, 0, 512]), rng.randint(2, 800)) for _ in range(rng.randint(1, 4))]
    return make(Phase.PREFILL, rows, **where)


def seconds_of(job: Job, decode: Line, prefill: Line) -> float:
    """By brute force over rows and steps: what a truth with these lines takes."""
    total = 0.0
    starts, counts = job.rows.starts.tolist(), job.rows.counts.tolist()
    for step in range(job.max_steps):
        if job.phase is Phase.DECODE:
            attended = sum(start + step + 1 for start in starts)
            total += decode.seconds(len(starts), attended)
        else:
            attended = sum(c * (s + c / 2) for s, c in zip(starts, counts, strict=True))
            total += prefill.seconds(sum(counts), attended)
    return total


def test_the_work_of_jobs() -> None:
    decode = work_of(make(Phase.DECODE, [(9, 1), (99, 1)], max_steps=3))
    assert decode == JobWork(2, (10 + 100) + (11 + 101) / 2 * 0 + 2, 0, 0)
    assert work_of(make(Phase.PREFILL, [(0, 1), (8, 4)])) == JobWork(0, 0, 5, 0.5 + 4 * 10)
    mixed = work_of(make(Phase.MIXED, [(9, 1), (8, 4), (19, 1)]))
    assert mixed == JobWork(2, 30, 4, 40)
    assert mixed == JobWork().with_rows(1, 10).with_prompt(8, 4).with_rows(1, 20)
    assert work_of(make(Phase.MIXED, [(9, 1)])).phase is Phase.DECODE
    assert work_of(make(Phase.MIXED, [(9, 2)])).phase is Phase.PREFILL
    assert mixed.phase is Phase.MIXED


def test_contexts_beyond_32_bits() -> None:
    rows = [(131_000, 32_000)] * 8
    expected = 8 * 32_000 * (131_000 + 16_000)
    assert work_of(make(Phase.PREFILL, rows)).attention == expected


@pytest.mark.parametrize("max_steps", [1, 8])
def test_without_a_seed_it_learns_from_nothing(max_steps) -> None:
    rng = random.Random(0)
    times = StepTimes()
    for count in range(200):
        for job in (decodes(rng, max_steps=max_steps), prefills(rng)):
            if count < 7:
                work = work_of(job)
                assert times.of("m", 1.0).job_s(work) == 0.0
            times.observe(job, seconds_of(job, DECODE, PREFILL))
    for job in [decodes(rng) for _ in range(30)]:
        work = work_of(job)
        expected = seconds_of(job, DECODE, PREFILL)
        assert times.of("m", 1.0).decode_s(*work[:2]) == pytest.approx(expected, rel=0.05)
    large = make(Phase.PREFILL, [(0, 600), (512, 600)])
    assert times.of("m", 1.0).job_s(work_of(large)) == pytest.approx(
        seconds_of(large, DECODE, PREFILL), rel=0.1
    )


def test_other_models_are_other_models() -> None:
    times = StepTimes(FixedSeed())
    before = times.of("m", 1.0).decode_s(10, 1000)
    for _ in range(20):
        times.observe(make(Phase.DECODE, [(99, 1)] * 10, model="other"), 1.0)
    assert times.of("other", 1.0).decode_s(10, 1000) == pytest.approx(1.0, rel=0.01)
    assert times.of("m", 1.0).decode_s(10, 1000) == before


def test_unseen_shares_borrow_the_correction() -> None:
    rng = random.Random(1)
    times = StepTimes(FixedSeed())
    assert times.of("m", 0.5).decode_s(10, 1000) == DECODE.scaled((2.0,) * 4).seconds(10, 1000)
    for _ in range(100):
        job = decodes(rng, share=0.3)
        times.observe(job, 1.5 * seconds_of(job, DECODE, PREFILL) / 0.3)
    for share in (0.5, 1.0):  # one asked before, one not
        expected = 1.5 * DECODE.seconds(10, 1000) / share
        assert times.of("m", share).decode_s(10, 1000) == pytest.approx(expected, rel=0.02)
    unseeded = StepTimes()
    for _ in range(100):
        job = decodes(rng, share=0.3)
        unseeded.observe(job, seconds_of(job, DECODE, PREFILL) / 0.3)
    assert unseeded.of("m", 0.6).decode_s(10, 1000) == pytest.approx(
        DECODE.seconds(10, 1000) / 0.6, rel=0.05
    )


def test_mixed_is_the_larger_part_and_half_the_smaller_until_corrected() -> None:
    times = StepTimes(FixedSeed())
    decode_s, prefill_s = DECODE.seconds(50, 20_000), PREFILL.seconds(500, 125_000)
    predicted = times.of("m", 1.0).job_s(JobWork(50, 20_000, 500, 125_000))
    assert predicted == pytest.approx(prefill_s + decode_s / 2)
    assert times.of("m", 1.0).job_s(JobWork(50, 20_000, 0, 0)) == decode_s
    assert times.of("m", 1.0).job_s(JobWork(0, 0, 500, 125_000)) == prefill_s
    rng = random.Random(2)
    for _ in range(200):
        rows = [(rng.randint(10, 900), 1) for _ in range(rng.randint(1, 100))]
        job = make(Phase.MIXED, [*rows, (0, rng.randint(2, 1000))])
        work = work_of(job)
        parts = DECODE.seconds(*work[:2]), PREFILL.seconds(*work[2:])
        times.observe(job, max(parts) + 0.9 * min(parts))
    predicted = times.of("m", 1.0).job_s(JobWork(50, 20_000, 500, 125_000))
    assert predicted == pytest.approx(prefill_s + 0.9 * decode_s, rel=0.03)
    assert times.of("m", 1.0).decode_s(50, 20_000) == decode_s


def test_mixed_jobs_teach_the_part_that_is_not_known() -> None:
    times = StepTimes()
    for _ in range(20):
        times.observe(make(Phase.DECODE, [(99, 1)] * 10), DECODE.seconds(10, 1000))
    for count in range(100, 400):
        job = make(Phase.MIXED, [(99, 1)] * 10 + [(0, count)])
        prefill_s = PREFILL.seconds(count, count**2 / 2)
        times.observe(job, prefill_s + DECODE.seconds(10, 1000) / 2)
    expected = PREFILL.seconds(300, 300**2 / 2)
    assert times.of("m", 1.0).prefill_s(300, 300**2 / 2) == pytest.approx(expected, rel=0.1)


@settings(deadline=None)
@given(st.integers(0, 20), WORKS, st.floats(0.0, 1.0), st.integers(0, 4000), st.integers(1, 4096))
def test_the_inverse_agrees_with_the_forward(seed, work, seconds, start, limit) -> None:
    rng = random.Random(seed)
    times = StepTimes(FixedSeed())
    for _ in range(seed):  # corrected lines, mixed ones too
        job = make(Phase.MIXED, [(300, 1)] * rng.randint(1, 90) + [(0, rng.randint(2, 900))])
        times.observe(job, rng.uniform(0.005, 0.5))
        times.observe(prefills(rng), rng.uniform(0.005, 0.5))
    count = times.of("m", 1.0).prompt_tokens_within(seconds, work, start, limit)
    assert 0 <= count <= limit
    if count:
        assert times.of("m", 1.0).job_s(work.with_prompt(start, count)) <= seconds
    if count < limit:
        assert times.of("m", 1.0).job_s(work.with_prompt(start, count + 1)) > seconds


@settings(deadline=None)
@given(st.integers(0, 20), WORKS, st.floats(0.0, 0.3), st.lists(st.integers(1, 4096), max_size=80))
def test_rows_that_fit_are_those_that_fit_one_by_one(seed, work, seconds, lengths) -> None:
    rng = random.Random(seed)
    times = StepTimes(FixedSeed())
    for _ in range(seed):
        for job in (decodes(rng), make(Phase.MIXED, [(300, 1)] * 20 + [(0, 300)])):
            times.observe(job, rng.uniform(0.005, 0.5))
    count = 0
    for length in lengths:
        work_then = work.with_rows(1, length)
        if times.of("m", 1.0).job_s(work_then) > seconds:
            break
        count, work = count + 1, work_then
    start = JobWork(work.num_rows - count, work.context - sum(lengths[:count]), *work[2:])
    assert times.of("m", 1.0).rows_within(seconds, start, ints(lengths)) == count


@settings(deadline=None)
@given(
    WORKS,
    st.floats(0.0, 0.3),
    st.lists(st.tuples(st.integers(0, 4096), st.integers(1, 40)), max_size=40),
)
def test_rows_of_several_tokens_that_fit_are_those_that_fit_one_by_one(work, seconds, rows) -> None:
    """rows: tokens with KV, and those that each computes."""
    times, count, then = StepTimes(FixedSeed()).of("m", 1.0), 0, work
    contexts = [sum(start + place + 1 for place in range(num)) for start, num in rows]
    for (_, num), context in zip(rows, contexts, strict=True):
        then = then.with_rows(num, context)
        if times.job_s(then) > seconds:
            break
        count += 1
    counts = ints([num for _, num in rows])
    assert times.rows_within(seconds, work, ints(contexts), counts) == count


def test_the_inverse_of_nothing_known_lets_all_in() -> None:
    assert StepTimes().of("m", 1.0).prompt_tokens_within(0.1, JobWork(), 0, 512) == 512
    assert StepTimes().of("m", 1.0).rows_within(0.1, JobWork(), ints([9] * 7)) == 7


@settings(deadline=None)
@given(st.integers(0, 20), WORKS, st.integers(0, 50), st.integers(0, 9999), st.integers(0, 999))
def test_more_work_is_never_less_time(seed, work, rows, context, tokens) -> None:
    rng = random.Random(seed)
    times = StepTimes(FixedSeed())
    for _ in range(seed):
        for job in (decodes(rng), prefills(rng), make(Phase.MIXED, [(300, 1)] * 20 + [(0, 300)])):
            times.observe(job, rng.uniform(0.001, 1.0))
    more = JobWork(
        work.num_rows + rows,
        work.context + context,
        work.num_tokens + tokens,
        work.attention + tokens * 9,
    )
    assert times.of("m", 1.0).job_s(more) >= times.of("m", 1.0).job_s(work)


def test_neighbours_do_not_spoil_the_lone_line() -> None:
    rng = random.Random(3)
    times = StepTimes(FixedSeed())
    for _ in range(150):
        lone, beside = decodes(rng), decodes(rng)
        times.observe(lone, 1.2 * seconds_of(lone, DECODE, PREFILL))
        times.observe(beside, 1.7 * 1.2 * seconds_of(beside, DECODE, PREFILL), 1)
    assert times.beside("m", Phase.DECODE, 1) == pytest.approx(1.7, rel=0.02)
    assert times.beside("m", Phase.DECODE, 2) == pytest.approx(1.7, rel=0.02)
    assert times.beside("m", Phase.DECODE, 0) == 1.0
    expected = 1.2 * DECODE.seconds(10, 1000)
    assert times.of("m", 1.0).decode_s(10, 1000) == pytest.approx(expected, rel=0.02)


def test_jobs_that_are_never_alone_are_predicted_with_their_neighbours() -> None:
    rng = random.Random(4)
    times = StepTimes(FixedSeed())
    truth = DECODE.scaled((1.0, 3.0, 2.0, 1.0))
    for _ in range(200):
        job = decodes(rng)
        times.observe(job, 1.5 * seconds_of(job, truth, PREFILL), 2)
    for job in [decodes(rng) for _ in range(30)]:
        predicted = times.of("m", 1.0).job_s(work_of(job)) * times.beside("m", Phase.DECODE, 2)
        assert predicted == pytest.approx(1.5 * seconds_of(job, truth, PREFILL), rel=0.04)


def test_errors_are_of_what_was_predicted() -> None:
    times = StepTimes(FixedSeed())
    assert times.errors() == {}
    job = make(Phase.DECODE, [(99, 1)] * 10, max_steps=4)
    first_s = seconds_of(job, DECODE, PREFILL)
    times.observe(job, 2 * first_s)
    found = times.errors()["m", Phase.DECODE]
    assert (found.count, found.mean, found.bias) == (1, pytest.approx(0.5), pytest.approx(-0.5))
    for _ in range(999):
        times.observe(job, 2 * first_s)
    found = times.errors()["m", Phase.DECODE]
    assert found.count == 1000
    assert found.mean < 0.01
    assert found.p90 < 0.01


def test_seconds_that_say_nothing() -> None:
    times = StepTimes(FixedSeed())
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        times.observe(make(Phase.DECODE, [(99, 1)]), seconds)
    assert times.errors() == {}
    assert times.of("m", 1.0).decode_s(1, 100) == DECODE.seconds(1, 100)


def copying(num_slots: int) -> Job:
    moved = np.array([[0, 0, num_slots]], dtype=np.int64)
    none = np.zeros((0, 3), dtype=np.int64)
    copies = (SlotCopies("m", moved, none, moved),)
    return make(Phase.DECODE, [(99, 1)] * 10, copies=copies)


@pytest.mark.parametrize("overlap", [True, False])
def test_the_host_link_is_learnt_and_does_not_spoil_the_forward(overlap) -> None:
    forward_s = DECODE.seconds(10, 1000)
    times = StepTimes(FixedSeed(), CopyTimes({"m": 512}, overlap=overlap))
    for num_slots in list(range(20_000, 200_000, 1000)):
        copy_s = 2 * num_slots * 512 / 2e9
        total_s = max(forward_s, copy_s) if overlap else forward_s + copy_s
        times.observe(copying(num_slots), total_s)
    assert times.copies.copy_s(2e9) == pytest.approx(1.0, rel=0.03)
    expected = 1.0 if overlap else 1.0 + forward_s
    assert times.copies.job_s(forward_s, 2e9) == pytest.approx(expected, rel=0.03)
    assert times.copies.job_s(forward_s, 0) == forward_s
    assert times.of("m", 1.0).decode_s(10, 1000) == pytest.approx(forward_s, rel=0.01)


def test_a_given_link_and_copies_alone() -> None:
    times = StepTimes(None, CopyTimes({}, 4e9))
    assert times.copies.copy_s(4e9) == pytest.approx(1.0)
    for _ in range(100):
        times.copies.observe(1e6, 1e6 / 2e9)
    assert times.copies.copy_s(4e9) == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize("overlap", [True, False])
def test_a_slow_forward_is_not_taken_for_slow_copies(overlap) -> None:
    """Every job copies a little, over a known link: what makes them slower is the forward."""
    times = StepTimes(FixedSeed(), CopyTimes({"m": 512}, 4e9, overlap=overlap))
    forward_s, copy_s = 2 * DECODE.seconds(10, 1000), 2 * 1000 * 512 / 4e9
    for _ in range(60):
        times.observe(copying(1000), forward_s if overlap else forward_s + copy_s)
    assert times.of("m", 1.0).decode_s(10, 1000) == pytest.approx(forward_s, rel=0.02)
    assert times.copies.copy_s(4e9) == pytest.approx(1.0)


def test_copies_that_explain_a_whole_job_of_an_unknown_model_teach_no_forward() -> None:
    """Copies before the forward, of which the link's first guess says that they took longer."""
    times = StepTimes(None, CopyTimes({"m": 512}, 1e6, overlap=False))
    mixed = make(Phase.MIXED, [(99, 1), (0, 20)], copies=copying(1000).copies)
    for _ in range(9):
        times.observe(mixed, 0.1)
    assert times.of("m", 1.0).job_s(work_of(mixed)) == 0.0
