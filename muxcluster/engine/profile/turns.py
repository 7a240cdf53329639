"""Measures what a unit itself does between two jobs: it takes in results, hands out tokens, and
decides what runs next."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from muxcluster.core.job import Job, JobResult
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import Executor, JobDone
from muxcluster.engine.profile.grid import Grid, Point, fits
from muxcluster.engine.profile.outcomes import check_outcome
from muxcluster.engine.unit.deltas import deltas_of
from muxcluster.placement.cost import Turn
from muxcluster.scheduling.scheduler import UnitScheduler

_PROMPT_TOKENS = 8
_FIRST = 3  # jobs whose turns do not count: a prefill, and what only first steps pay
_STEPS = 8  # decode steps a repeat: a turn is short


def measure_turns(spec: UnitSpec, executor: Executor, grid: Grid) -> tuple[Turn, ...]:
    """Measure after decode steps of every batch of `grid` that fits.

    spec: a unit of one model, as loaded by `executor`, which has started and runs nothing else.
    Raises EngineFailure as `profile.model.measure`.
    """
    num_steps = _STEPS * grid.repeats
    tokens = _PROMPT_TOKENS + _FIRST + num_steps
    lane = "mixed" if spec.scheduler.lane == "mixed" else "temporal"
    spec = replace(spec, scheduler=replace(spec.scheduler, lane=lane, pipeline_depth=1))
    return tuple(
        _turn(spec, executor, rows, num_steps)
        for rows in grid.batches
        if fits(spec, Point(1.0, rows, tokens))
    )


def _turn(spec: UnitSpec, executor: Executor, rows: int, num_steps: int) -> Turn:
    """Run `rows` requests as the unit would, one job at a time."""
    scheduler = UnitScheduler(spec)
    for request in _requests(spec, rows, num_steps):
        scheduler.add(request, time.monotonic())
    seconds: list[float] = []
    jobs = scheduler.next_jobs(time.monotonic())
    while jobs:
        (job,) = jobs
        result = _run(executor, job)
        ended_s = time.perf_counter()
        deltas_of([scheduler.complete(job, result, time.monotonic())])
        jobs = scheduler.next_jobs(time.monotonic())
        seconds.append(time.perf_counter() - ended_s)
    return Turn(rows, tuple(seconds[_FIRST:-1]))


def _requests(spec: UnitSpec, rows: int, num_steps: int) -> Sequence[Request]:
    (model,) = spec.models
    prompt = np.arange(_PROMPT_TOKENS, dtype=np.int32) % np.int32(model.vocab_size)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=_FIRST + num_steps)
    return [
        Request(f"turn-{number}", model.name, prompt, sampling, cacheable=False)
        for number in range(rows)
    ]


def _run(executor: Executor, job: Job) -> JobResult:
    executor.launch(job)
    while True:
        for outcome in executor.wait(None):
            check_outcome(outcome)
            if isinstance(outcome, JobDone):
                return outcome.result
