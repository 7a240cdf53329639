"""Lines fitted to a few measured jobs, against the formula that their seconds came from."""

import random

import numpy as np
import pytest

from muxcluster.core.job import Job, Phase, Rows, TableDelta
from muxcluster.scheduling.steptime.line import JobWork
from muxcluster.scheduling.steptime.model import StepTimes
from muxcluster.scheduling.steptime.seed import MeasuredSeed

_NONE = np.empty(0, dtype=np.int32)
NO_TABLES = TableDelta(_NONE, _NONE, np.empty((0, 4), dtype=np.int32))


def job(rows: int, context: int, prompts: int = 0, length: int = 0, share: float = 1.0) -> Job:
    """`rows` sequences of `context` tokens each that decode, and prompts from their first token."""
    starts = np.array([context - 1] * rows + [0] * prompts, dtype=np.int32)
    counts = np.array([1] * rows + [length] * prompts, dtype=np.int32)
    table_rows = np.arange(len(starts), dtype=np.int32)
    phase = Phase.MIXED if rows and prompts else Phase.PREFILL if prompts else Phase.DECODE
    samples = np.ones(len(starts), dtype=np.bool_)
    return Job(0, "m", phase, 0, share, Rows(table_rows, starts, counts, samples), NO_TABLES)


def seconds(rows: int, context: int, prompts: int, length: int) -> float:
    """Weights are read once, whatever is in a job."""
    return (
        0.02
        + 0.0011 * rows
        + 1e-6 * rows * context
        + prompts * (0.0013 * length + 2e-6 * length**2 / 2)
    )


WORK = [
    *((rows, context, 0, 0) for rows in (1, 3, 8, 20) for context in (10, 60, 200)),
    *((0, 0, prompts, length) for prompts in (1, 2, 5) for length in (8, 30, 64)),
    *((rows, 50, 1, length) for rows in (1, 6, 15) for length in (8, 40)),
]
CHECKED = [(12, 100, 0, 0), (0, 0, 3, 20), (0, 0, 1, 100), (10, 80, 2, 20), (2, 20, 1, 60)]


def measured(noise: float = 0.0, odd: float = 1.0, share: float = 1.0) -> MeasuredSeed:
    """odd: by how many times the second job of each kind took longer than it should."""
    rng, seed = random.Random(3), MeasuredSeed()
    for index, work in enumerate(WORK):
        factor = rng.uniform(1 - noise, 1 + noise) * (odd if index in (1, 13, 22) else 1.0)
        seed.observe(job(*work, share=share), factor * seconds(*work))
    return seed


def predicted(times: StepTimes, work: tuple[int, int, int, int], share: float = 1.0) -> float:
    rows, context, prompts, length = work
    num_tokens = prompts * length
    return times.of("m", share).job_s(
        JobWork(rows, rows * context, num_tokens, num_tokens * length / 2)
    )


@pytest.mark.parametrize(("noise", "odd", "error"), [(0.0, 1.0, 0.03), (0.1, 4.0, 0.12)])
def test_jobs_of_all_kinds_are_predicted(noise: float, odd: float, error: float) -> None:
    times = StepTimes(measured(noise, odd))
    for work in CHECKED:
        assert predicted(times, work) == pytest.approx(seconds(*work), rel=error)


def test_a_share_that_was_not_tried_takes_longer_in_proportion() -> None:
    times = StepTimes(measured())
    for work in CHECKED:
        assert predicted(times, work, 0.5) == pytest.approx(2 * seconds(*work), rel=0.03)


def test_jobs_that_come_correct_what_was_measured() -> None:
    times = StepTimes(measured())
    for _ in range(20):
        for work in WORK:
            times.observe(job(*work), 1.5 * seconds(*work))
    for work in CHECKED:
        assert predicted(times, work) == pytest.approx(1.5 * seconds(*work), rel=0.06)


def test_two_jobs_tell_nothing() -> None:
    seed = MeasuredSeed()
    for work in WORK[:2]:
        seed.observe(job(*work), seconds(*work))
    assert seed.line(Phase.DECODE, "m", 1.0) is None
    assert seed.line(Phase.PREFILL, "m", 1.0) is None
    assert measured().line(Phase.DECODE, "other", 1.0) is None
