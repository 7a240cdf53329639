"""Jobs that run before a unit is ready, so that step times are known at the first request."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from muxcluster.core.job import Phase, WorkerSpec
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.engine.executor import Executor, JobFailed
from muxcluster.engine.unit.clock import Clock
from muxcluster.engine.unit.warm_up_scheduler import LostInWarmUp, WarmUpScheduler
from muxcluster.scheduling.steptime.seed import MeasuredSeed

logger = logging.getLogger(__name__)

# Seconds per model; jobs that have begun by then, and the first jobs of each worker, take longer.
_MOST_S = 2.0
_LONGEST_S = 0.25  # prompts that would take longer together are left out
# Prompts, and tokens of each. Those at even places run alone, the next ones while these decode.
# Eight of the first kind are enough to learn prefill, eight decode steps to learn decode; small
# ones come first, as time may run out.
_SCRIPT = (
    *((1, 16), (4, 8), (1, 64), (2, 16), (8, 8), (1, 32), (2, 32), (8, 4)),
    *((1, 32), (1, 64), (16, 4), (4, 16), (4, 16), (1, 16), (1, 48), (2, 32)),
    *((1, 24), (2, 8), (8, 32), (1, 128), (32, 8), (2, 64), (1, 512), (4, 64)),
    *((64, 16), (1, 256), (2, 512), (16, 16)),
)
_WARM_UP = (1, 16)


def warm_up(spec: UnitSpec, executor: Executor, clock: Clock, seed: MeasuredSeed) -> None:
    """Run jobs of every model on every worker and rung of a started `executor`; `seed` learns.

    spec: with the models that are resident; there may be none. The jobs come from schedulers of
    their own, so the unit's scheduler is not involved; what they leave in the pool and in the
    workers' rows is overwritten as after any ended request. After some losses it logs a warning and
    returns. Raises as `Executor.wait` and `restart`.
    """
    if not spec.models:
        return
    try:
        for workers in _worker_sets(spec.workers):
            _run_first_jobs(spec, workers, executor, clock)
        rungs: dict[frozenset[tuple[Phase, float]], tuple[WorkerSpec, ...]] = {}
        for workers in sorted(_worker_sets(spec.workers), key=_share, reverse=True):
            rungs.setdefault(_rungs(workers), workers)
        for model in spec.models:
            for workers in rungs.values():
                scheduler = WarmUpScheduler(_alone(spec, workers), executor, clock, seed)
                _learn(scheduler, model, _MOST_S / len(rungs))
    except LostInWarmUp as loss:
        logger.warning("%s starts with fewer step times known: %s", spec.unit_id, loss)
        if not isinstance(loss.outcome, JobFailed):
            executor.restart()


def _worker_sets(workers: Sequence[WorkerSpec]) -> Iterator[tuple[WorkerSpec, ...]]:
    """Yield each worker at each rung, the largest first, and others for its missing phases."""
    for worker in workers:
        others = tuple(
            replace(other, phases=lacking, shares=other.shares[-1:])
            for other in workers
            if (lacking := other.phases - worker.phases)
        )
        for share in reversed(worker.shares):
            yield (replace(worker, shares=(share,)), *others)


def _share(workers: Sequence[WorkerSpec]) -> float:
    return workers[0].shares[0]


def _rungs(workers: Sequence[WorkerSpec]) -> frozenset[tuple[Phase, float]]:
    return frozenset((phase, worker.shares[0]) for worker in workers for phase in worker.phases)


def _alone(spec: UnitSpec, workers: tuple[WorkerSpec, ...]) -> UnitSpec:
    """Return the same models and pool with one job at a time, in the order of arrival."""
    lane = "mixed" if spec.scheduler.lane == "mixed" else "temporal"
    policy = replace(spec.scheduler, lane=lane, packing="priority", pipeline_depth=1)
    return replace(spec, workers=workers, scheduler=policy, num_host_blocks=0)


def _run_first_jobs(
    spec: UnitSpec, workers: tuple[WorkerSpec, ...], executor: Executor, clock: Clock
) -> None:
    """Run jobs without learning from them: the first jobs of a process are slow."""
    scheduler = WarmUpScheduler(_alone(spec, workers), executor, clock)
    for model in spec.models:
        scheduler.add(model, *_WARM_UP)
        scheduler.run()


def _learn(scheduler: WarmUpScheduler, model: ModelSpec, seconds: float) -> None:
    end_s = scheduler.now + seconds
    for first, second in list(pairwise(_SCRIPT))[::2]:
        if scheduler.now >= end_s:
            return
        for prompts, length in (first, second):
            if scheduler.prefill_s(model.name, prompts, length) < _LONGEST_S:
                scheduler.add(model, prompts, length)
                scheduler.run(num_jobs=2)
        scheduler.run()
