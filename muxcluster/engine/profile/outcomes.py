"""Waits for jobs of a measurement, which a lost job or process ends."""

import time
from collections.abc import Iterator
from dataclasses import replace

from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import Job
from muxcluster.engine.executor import Executor, JobDone, JobFailed, Outcome, OwnerLost

_STEPS = 4  # in a row: two outcomes may be heard of at once


def check_outcome(outcome: Outcome) -> None:
    """Raise EngineFailure if a job or all memory is lost."""
    if isinstance(outcome, JobFailed | OwnerLost):
        raise EngineFailure(f"profiling stopped: {outcome.message}")


def num_ended(executor: Executor) -> int:
    """Wait for outcomes; return how many jobs ended. Raises as `check_outcome`."""
    outcomes = executor.wait(None)
    for outcome in outcomes:
        check_outcome(outcome)
    return sum(isinstance(outcome, JobDone) for outcome in outcomes)


def seconds_behind(executor: Executor, step: Job, ids: Iterator[int]) -> float:
    """Return the seconds of a decode step that was sent before the one ahead of it ended.

    step: run several times over; it computes the same token each time. ids: of these jobs. Raises
    as `check_outcome`.
    """
    ends_s: list[float] = []
    last, num_sent = None, 0
    while len(ends_s) < _STEPS:
        while num_sent < _STEPS and num_sent < len(ends_s) + 2:
            sent = replace(step, job_id=next(ids), follows=last)
            executor.launch(sent)
            last, num_sent = sent.job_id, num_sent + 1
        ended = num_ended(executor)
        ends_s += [time.perf_counter()] * ended
    return (ends_s[-1] - ends_s[0]) / (_STEPS - 1)
