"""Rows of a model's own cache from job to job: any worker goes on, and none needs to have ended."""

import random

import pytest

from muxcluster.core.backends import as_loaded
from muxcluster.core.events import StepOutput
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.processes.admissions import AdmissionLedger
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.engine.unit.deltas import deltas_of
from muxcluster.scheduling.scheduler import UnitScheduler
from tests.engine.conftest import ModelBuilder
from tests.engine.dense.units import VOCAB, generated, unit_of
from tests.engine.units import greedy, prompts, request_of

NUM_TOKENS = 14
RUNGS = (0, 1)


class Churn:
    """Requests come and are aborted at random; each job runs in one of two workers that have the
    pool in common, and of some nobody hears that they ran."""

    def __init__(self, spec: UnitSpec, seed: str) -> None:
        first = UnitRunner(spec)
        self._runners = (first, UnitRunner(spec, first.memory))
        spec = as_loaded(spec, first.backends)
        self.scheduler = UnitScheduler(spec)
        self._ledger = AdmissionLedger.of(spec, RUNGS)
        self._rng = random.Random(seed)
        self._open: set[str] = set()
        self.tokens: dict[str, list[int]] = {}
        self.aborted: set[str] = set()
        self.num_lost = 0

    def run(self, asked: dict[str, list[int]]) -> None:
        """All of them to their ends, four at a time."""
        waiting = list(asked.items())
        while waiting or self._open:
            while waiting and len(self._open) < 4:
                request_id, prompt = waiting.pop(0)
                self.scheduler.add(request_of(request_id, prompt, greedy(NUM_TOKENS)), 0.0)
                self._open.add(request_id)
                self.tokens[request_id] = []
            for job in self.scheduler.next_jobs(0.0):
                self._take([self._job_output(job), *self._aborts()])
            self.scheduler.check()

    def _job_output(self, job: Job) -> StepOutput:
        rung = self._rng.choice(RUNGS)
        result = self._runners[rung].execute(self._ledger.complete(job, rung))
        if self._rng.random() < 0.15:
            self.num_lost += 1
            return self.scheduler.fail(job, 0.0, "lost", has_started=False)
        return self.scheduler.complete(job, result, 0.0)

    def _aborts(self) -> list[StepOutput]:
        if not self._open or self._rng.random() > 0.06:
            return []
        victim = self._rng.choice(sorted(self._open))
        self.aborted.add(victim)
        output = self.scheduler.abort(victim, 0.0)
        return [] if output is None else [output]

    def _take(self, outputs: list[StepOutput]) -> None:
        for request_id, delta in deltas_of(outputs).items():
            self.tokens[request_id] += delta.tokens
            if delta.finished is not None:
                self._open.discard(request_id)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bloom", "mamba", "jamba"])
def test_any_worker_goes_on_with_any_sequence(tiny: ModelBuilder, family: str) -> None:
    churn = Churn(unit_of({family: tiny(family)}, ()), family)
    asked = prompts(family, 14, VOCAB, longest=90)
    churn.run(asked)
    assert churn.num_lost > 0
    assert 0 < len(churn.aborted) < len(asked)
    for request_id, prompt in asked.items():
        expected = generated(tiny(family), prompt, NUM_TOKENS)
        if request_id in churn.aborted:
            expected = expected[: len(churn.tokens[request_id])]
        assert churn.tokens[request_id] == expected, request_id
    assert churn.scheduler.used_blocks() == {family: 0}
