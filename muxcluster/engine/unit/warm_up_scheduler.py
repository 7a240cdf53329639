"""Scheduler of warm-up jobs: runs one at a time, from launch to end."""

from itertools import count

import numpy as np

from muxcluster.core.events import Preempted, StepOutput
from muxcluster.core.job import Job, Phase
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.engine.executor import Executor, JobDone, JobFailed, ModelLost, Outcome, OwnerLost
from muxcluster.engine.unit.clock import Clock
from muxcluster.scheduling.scheduler import UnitScheduler
from muxcluster.scheduling.steptime.seed import MeasuredSeed

_PATIENCE_S = 1.0
_MOST_LOSSES = 2
_NUM_OUTPUT = 3
_GREEDY = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=_NUM_OUTPUT)


class LostInWarmUp(Exception):
    """The warm-up lost its worker too often, or an owner; `outcome` is that of the last job."""

    def __init__(self, outcome: JobFailed | ModelLost | OwnerLost) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


class WarmUpScheduler:
    """Runs requests on an executor that nobody else uses meanwhile.

    Jobs that fail run again, twice; then, or if the owner is lost, LostInWarmUp is raised.
    """

    def __init__(
        self, spec: UnitSpec, executor: Executor, clock: Clock, seed: MeasuredSeed | None = None
    ) -> None:
        """spec: of one job at a time. seed: learns from the jobs."""
        self._spec = spec
        self._scheduler = UnitScheduler(spec)
        self._executor = executor
        self._clock = clock
        self._seed = seed
        self._share = spec.workers[0].shares[0]
        self._ids = count()
        self._num_open = self._num_losses = 0

    @property
    def now(self) -> float:
        return self._clock.now()

    def prefill_s(self, model: str, prompts: int, length: int) -> float:
        """Return the estimate known by now; 0 if there is none."""
        line = self._seed and self._seed.line(Phase.PREFILL, model, self._share)
        num_tokens = prompts * length
        return line.seconds(num_tokens, num_tokens * length / 2) if line else 0.0

    def add(self, model: ModelSpec, prompts: int, length: int) -> None:
        """Add `prompts` requests of `length` tokens, each with three output tokens.

        Adds fewer and shorter ones if a job, the model or the pool cannot hold them.
        """
        policy = self._spec.scheduler
        length = max(1, min(length, policy.token_budget, model.max_model_len - _NUM_OUTPUT))
        columns = -(-(length + _NUM_OUTPUT) // model.shape.block_tokens(self._spec.block_bytes))
        columns += model.state_columns
        most = (
            policy.token_budget // length,
            policy.max_decode_rows,
            model.max_seqs // 2,
            self._spec.num_blocks // (2 * columns * model.shape.blocks_per_column),
        )
        prompt = np.arange(length, dtype=np.int32) % np.int32(model.vocab_size)
        for _ in range(max(1, min(prompts, *most))):
            name = f"warm-up-{next(self._ids)}"
            request = Request(name, model.name, prompt, _GREEDY, cacheable=False)
            self._num_open += 1
            self._count(self._scheduler.add(request, self.now))

    def run(self, num_jobs: int | None = None) -> None:
        """Run to the end of all requests, or for `num_jobs` jobs."""
        while self._num_open and num_jobs != 0:
            num_jobs = None if num_jobs is None else num_jobs - 1
            start_s = self.now
            (job,) = self._scheduler.next_jobs(start_s)
            self._executor.launch(job)
            self._settle(job, self._wait(), start_s)

    def _wait(self) -> Outcome:
        while True:
            for outcome in self._executor.wait(_PATIENCE_S):
                if isinstance(outcome, ModelLost | OwnerLost):
                    raise LostInWarmUp(outcome)
                if isinstance(outcome, JobDone | JobFailed):
                    return outcome

    def _settle(self, job: Job, outcome: Outcome, start_s: float) -> None:
        now = self.now
        if isinstance(outcome, JobDone):
            if self._seed is not None:
                self._seed.observe(job, now - start_s)
            self._count(self._scheduler.complete(job, outcome.result, now))
            return
        assert isinstance(outcome, JobFailed), outcome
        self._num_losses += 1
        if self._num_losses > _MOST_LOSSES:
            raise LostInWarmUp(outcome)
        started = outcome.has_started
        self._count(self._scheduler.fail(job, now, outcome.message, has_started=started))

    def _count(self, output: StepOutput | None) -> None:
        if output is not None:
            ends = [each for each in output.events if not isinstance(each, Preempted)]
            self._num_open -= len(ends)
