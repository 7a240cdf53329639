"""A job that only repeats itself, and how often it did."""

from dataclasses import dataclass

from muxcluster.core.job import Job


@dataclass(frozen=True, slots=True)
class Repetition:
    """A job that ended `count` times and was launched again unchanged."""

    job: Job
    count: int
    order: int  # of its last launch among those of all repetitions, from 0; -1: it had none
    start_s: float  # of that launch, where it runs
    end_s: float  # when it ended last
    running_s: float  # of the jobs that ended, together
    is_running: bool
