"""Timing of a scheduler's part of the engine's loop, step by step."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from bench.scheduling.load import SteadyLoad
from muxcluster.core.job import Phase

# Seconds from any origin: `perf_counter`, or `thread_time` on a machine with other work.
Clock = Callable[[], float]


@dataclass(slots=True)
class Timings:
    """Microseconds of every step, in order, and what the job that it completed was."""

    next_jobs_us: list[float] = field(default_factory=list)
    complete_us: list[float] = field(default_factory=list)
    add_us: list[float] = field(default_factory=list)
    is_decode: list[bool] = field(default_factory=list)
    has_copies: list[bool] = field(default_factory=list)
    num_rows: list[int] = field(default_factory=list)
    num_tokens: int = 0
    num_ended: int = 0


def measure(load: SteadyLoad, num_steps: int, clock: Clock = perf_counter) -> Timings:
    """Run `num_steps` turns of the loop and time the scheduler's part of each."""
    timings = Timings()
    scheduler = load.scheduler
    for _ in range(num_steps):
        start = clock()
        jobs = scheduler.next_jobs(load.now)
        next_jobs_s = clock() - start
        load.launch(jobs)
        job, result = load.finish()
        start = clock()
        output = scheduler.complete(job, result, load.now)
        complete_s = clock() - start
        timings.next_jobs_us.append(1e6 * next_jobs_s)
        timings.complete_us.append(1e6 * complete_s)
        timings.is_decode.append(job.phase is Phase.DECODE)
        timings.has_copies.append(len(job.copies) > 0)
        timings.num_rows.append(len(job.rows))
        timings.num_tokens += len(output.tokens)
        for request in load.replacements(output):
            start = clock()
            scheduler.add(request, load.now)
            timings.add_us.append(1e6 * (clock() - start))
            timings.num_ended += 1
    return timings
