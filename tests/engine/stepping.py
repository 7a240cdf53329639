"""A scheduler and a runner in one thread: what a unit does, with nothing left to timing."""

from collections.abc import Mapping, Sequence

from muxcluster.core.backends import as_loaded
from muxcluster.core.job import Job
from muxcluster.core.request import Request
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.scheduling.scheduler import UnitScheduler


class SteppedUnit:
    """Runs jobs one after another, each to its end. jobs: all there were."""

    def __init__(self, spec: UnitSpec, runner: UnitRunner | None = None) -> None:
        self.runner = runner or UnitRunner(spec)
        self.scheduler = UnitScheduler(as_loaded(spec, self.runner.backends))
        self.jobs: list[Job] = []
        self.tokens: dict[str, list[int]] = {}
        self._now = 0.0

    def add(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.tokens[request.request_id] = []
            assert self.scheduler.add(request, self._now) is None, request.request_id

    def step(self) -> bool:
        """The next jobs; False where there is nothing to do."""
        jobs = self.scheduler.next_jobs(self._now)
        for job in jobs:
            self._now += 0.001
            result = self.runner.execute(job)
            while self.runner.record_next():  # as a worker does that has nothing else to do
                pass
            output = self.scheduler.complete(job, result, self._now)
            places = iter(output.tokens.tolist())
            for request_id, count in zip(output.request_ids, output.counts.tolist(), strict=True):
                self.tokens[request_id] += [next(places) for _ in range(count)]
        self.jobs += jobs
        self.scheduler.check()
        return bool(jobs)

    def run(self, requests: Sequence[Request]) -> Mapping[str, list[int]]:
        """All of them to their ends; their tokens."""
        self.add(requests)
        while self.step():
            pass
        stats = self.scheduler.stats(self._now, "u")
        assert sum(m.num_running + m.num_waiting for m in stats.models) == 0
        return {request.request_id: self.tokens[request.request_id] for request in requests}
