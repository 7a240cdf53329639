"""Worker rungs: where a unit's jobs run, each with its own runner and sampling parameters.

A worker has one rung where its share can change from job to job (threads of a CPU), and one rung
for each share where a share is fixed when a process or a context is made (MPS, green contexts).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from muxcluster.core.job import Job, WorkerSpec


@dataclass(frozen=True, slots=True)
class WorkerRung:
    """A place where jobs run."""

    rung_id: int  # its position among the unit's rungs
    worker_id: int
    share: float | None = None  # the only one it runs at, None: any


def rung_per_worker(workers: Sequence[WorkerSpec]) -> tuple[WorkerRung, ...]:
    """Return one rung per worker, with the worker's id as rung id."""
    return tuple(WorkerRung(worker.worker_id, worker.worker_id) for worker in workers)


def rung_per_share(workers: Sequence[WorkerSpec]) -> tuple[WorkerRung, ...]:
    """Return one rung per worker and share, in the order of workers and of their shares."""
    rungs = [(worker.worker_id, share) for worker in workers for share in worker.shares]
    return tuple(WorkerRung(rung_id, *rung) for rung_id, rung in enumerate(rungs))


class RungPlan:
    """Finds the rung of a job."""

    def __init__(self, rungs: Sequence[WorkerRung]) -> None:
        self.rungs = tuple(rungs)
        self._rung_ids = {(rung.worker_id, rung.share): rung.rung_id for rung in rungs}

    def rung_of(self, job: Job) -> int:
        """Return the rung id. Raises KeyError for a worker or a share that no rung has."""
        rung_id = self._rung_ids.get((job.worker_id, job.share))
        return self._rung_ids[job.worker_id, None] if rung_id is None else rung_id
