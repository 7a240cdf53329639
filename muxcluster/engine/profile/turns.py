"""Measures what a unit itself does between two jobs: it takes in results, hands out tokens, and
decides what runs next."""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from muxcluster.core.job import Job, JobResult
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import Executor, JobDone
from muxcluster.engine.profile.grid import Grid, Point, fits
from muxcluster.engine.profile.outcomes import check_outcome, seconds_behind
from muxcluster.engine.unit.deltas import deltas_of
from muxcluster.placement.cost import Turn
from muxcluster.scheduling.scheduler import UnitScheduler

_PROMPT_TOKENS = 32
_FIRST = 3  # jobs whose turns do not count: a prefill, and what only first steps pay
_STEPS = 8  # jobs a repeat: a turn is short
_OTHER_IDS = count(1 << 40)  # of jobs that no scheduler made


def measure_turns(spec: UnitSpec, executor: Executor, grid: Grid) -> tuple[Turn, ...]:
    """Measure at every batch of `grid` that fits: between decode steps of the same sequences, and
    between jobs of prompts that end with their first token, followed by as many others.

    Where cells are of decode steps that were sent ahead, what a step takes more that was not is
    part of its turn.

    spec: a unit of one model, as loaded by `executor`, which has started and runs nothing else.
    Raises EngineFailure as `profile.model.measure`.
    """
    num_turns = _STEPS * grid.repeats
    most_tokens = _PROMPT_TOKENS + _FIRST + num_turns
    lane = "mixed" if spec.scheduler.lane == "mixed" else "temporal"
    (model,) = spec.models
    sends_ahead = spec.scheduler.pipeline_depth > 1 and model.padded is None
    sends_ahead = sends_ahead and not model.state_columns
    spec = replace(spec, scheduler=replace(spec.scheduler, lane=lane, pipeline_depth=1))
    return tuple(
        _Turns(spec, executor, rows, is_decoding=is_decoding).measure(
            num_turns, sends_ahead=sends_ahead and is_decoding
        )
        for rows in grid.batches
        if fits(spec, Point(1.0, rows, most_tokens))
        for is_decoding in (True, False)
    )


class _Turns:
    """Runs `rows` requests at a time as the unit would, one job at a time."""

    def __init__(self, spec: UnitSpec, executor: Executor, rows: int, *, is_decoding: bool) -> None:
        self._model = spec.models[0]
        self._executor = executor
        self._rows = rows
        self._is_decoding = is_decoding
        self._scheduler = UnitScheduler(spec)
        self._random = np.random.default_rng(self._model.seed)
        self._ids = count()

    def measure(self, num_turns: int, *, sends_ahead: bool) -> Turn:
        """sends_ahead: the steps' seconds are those of steps behind others."""
        num_jobs = _FIRST + num_turns + 1
        output = num_jobs if self._is_decoding else 1
        self._add(self._requests(output))
        seconds: list[float] = []
        (job,) = self._scheduler.next_jobs(time.monotonic())
        for _ in range(num_jobs - 1):
            sent_s = time.perf_counter()
            result = self._run(job)
            waited_s = time.perf_counter() - sent_s
            hidden_s = 0.0
            if sends_ahead and not job.admissions:
                hidden_s = max(0.0, waited_s - seconds_behind(self._executor, job, _OTHER_IDS))
            # arrivals cost the unit something, but it does not make them
            following = [] if self._is_decoding else self._requests(output)
            begun_s = time.perf_counter()
            deltas_of([self._scheduler.complete(job, result, time.monotonic())])
            self._add(following)
            (job,) = self._scheduler.next_jobs(time.monotonic())
            seconds.append(time.perf_counter() - begun_s + hidden_s)
        self._run(job)
        return Turn(self._rows, 0 if self._is_decoding else self._rows, tuple(seconds[_FIRST:]))

    def _add(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._scheduler.add(request, time.monotonic())

    def _requests(self, output: int) -> list[Request]:
        sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=output)
        shape = self._rows, _PROMPT_TOKENS
        prompts = self._random.integers(self._model.vocab_size, size=shape, dtype=np.int32)
        return [
            Request(f"turn-{next(self._ids)}", self._model.name, prompt, sampling)
            for prompt in prompts
        ]

    def _run(self, job: Job) -> JobResult:
        self._executor.launch(job)
        while True:
            for outcome in self._executor.wait(None):
                check_outcome(outcome)
                if isinstance(outcome, JobDone):
                    return outcome.result
