"""SM shares: which worker runs the next job, on which rung of its ladder."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import product

from muxcluster.core.job import Job, Phase, WorkerSpec

_EPSILON = 1e-6  # shares are decimal fractions; their sums are not exact


@dataclass(frozen=True, slots=True)
class Place:
    """A free worker and the share a job would run at."""

    worker_id: int
    share: float


Rungs = tuple[float, ...]  # of jobs side by side, 0 for one that waits


class ShareLedger:
    """Running jobs by worker. Invariant: a worker runs one job, running shares sum to ≤ 1.

    A running job may have a follower (see pipelining.py), which holds nothing until it starts.
    """

    def __init__(self, workers: Sequence[WorkerSpec]) -> None:
        most_special_first = sorted(workers, key=lambda w: (len(w.phases), w.worker_id))
        self._workers = tuple(most_special_first)
        self._by_phase = {p: [w for w in self._workers if p in w.phases] for p in Phase}
        self._beside = {(p, q): self._rungs_beside(p, q) for p in Phase for q in Phase}
        self._tuples: dict[tuple[tuple[Phase, ...], float], tuple[Rungs, ...]] = {}
        self._running: dict[int, Job] = {}
        self._start_s: dict[int, float] = {}
        self._followers: dict[int, Job] = {}
        self.left = 1.0  # share that no running job holds
        self.is_exclusive = False  # no place is free while any job runs

    @property
    def running(self) -> tuple[Job, ...]:
        """Jobs that have started and not ended."""
        return tuple(self._running.values())

    def running_since_s(self, now: float) -> float:
        """Return when the first of the running jobs started; `now` where none runs."""
        return min(self._start_s.values(), default=now)

    def has_running(self, phase: Phase) -> bool:
        """Return True while a job of `phase` runs."""
        return any(job.phase is phase for job in self._running.values())

    def running_models(self, phase: Phase) -> set[str]:
        return {job.model for job in self._running.values() if job.phase is phase}

    def start(self, job: Job, now: float) -> None:
        """Note that `job` runs on its worker, which was free."""
        assert job.worker_id not in self._running, f"worker {job.worker_id} is busy"
        self._running[job.worker_id] = job
        self._start_s[job.worker_id] = now
        self._count_left()

    def follow(self, job: Job) -> None:
        """Note that `job` is with its worker, behind the one that it follows."""
        before = self._running[job.worker_id]
        assert before.job_id == job.follows and before.share == job.share, "it follows another"
        assert job.worker_id not in self._followers, f"worker {job.worker_id} has two jobs already"
        self._followers[job.worker_id] = job

    def follower(self, job: Job) -> Job | None:
        follower = self._followers.get(job.worker_id)
        return follower if follower is not None and follower.follows == job.job_id else None

    def end(self, job: Job) -> float | None:
        """Remove a job that ended, and its follower; return when it started.

        None where a reset has forgotten it.
        """
        running = self._running.get(job.worker_id)
        if running is None or running.job_id != job.job_id:
            return None
        del self._running[job.worker_id]
        self._followers.pop(job.worker_id, None)
        self._count_left()
        return self._start_s.pop(job.worker_id)

    def replace(self, again: Job, start_s: float) -> None:
        """Note that the job on its worker has ended and `again` has started in its place."""
        assert self._running[again.worker_id].share == again.share, "it has another place"
        self._running[again.worker_id] = again
        self._start_s[again.worker_id] = start_s

    def without(self, job: Job) -> "ShareLedger":
        """Return the ledger as it would be if a running job ended now."""
        ledger = copy(self)
        ledger._running = {w: each for w, each in self._running.items() if each is not job}
        ledger._count_left()
        return ledger

    def _count_left(self) -> None:
        self.left = 1.0 - sum([job.share for job in self._running.values()])

    def supports(self, phase: Phase) -> bool:
        """Return True where some worker may run `phase`."""
        return len(self._by_phase[phase]) > 0

    def phases(self, worker_id: int) -> frozenset[Phase]:
        return next(w.phases for w in self._workers if w.worker_id == worker_id)

    def full(self, phase: Phase) -> Place | None:
        """Return the largest share that a worker for `phase` has; None where it is not free."""
        return self.at(phase, max(self._rungs(phase)))

    def beside(self, phase: Phase, other: Phase, share: float = 0.5) -> Place | None:
        """Return a place for `phase` that leaves a rung of another worker for `other`, or None.

        The rung nearest to `share`, the larger of two; the largest one where no split is possible.
        """
        rungs = self._beside[phase, other]
        return self.at(phase, _nearest(rungs, share)) if rungs else self.full(phase)

    def _rungs_beside(self, phase: Phase, other: Phase) -> list[float]:
        return [rung for rung in self._rungs(phase) if self._leaves_room(rung, phase, other)]

    def tuples(self, phases: tuple[Phase, ...], most: float = 1.0) -> tuple[Rungs, ...]:
        """Return every tuple of rungs at which jobs of these phases can run side by side.

        Each on a worker of its own, with `most` of the SMs in sum; 0 is a job that waits. Only
        those in which no job could have a greater rung.
        """
        key = phases, round(most, 6)
        found = self._tuples.get(key)
        if found is None:
            found = self._tuples[key] = _maximal(self._ladders(phases), most + _EPSILON)
        return found

    def _ladders(self, phases: Sequence[Phase]) -> list[Rungs]:
        """The ladder of the worker that each job would have; empty where none is left."""
        taken: set[int] = set()
        ladders: list[Rungs] = []
        for phase in phases:
            free = (each for each in self._by_phase[phase] if each.worker_id not in taken)
            worker = next(free, None)
            if worker is not None:
                taken.add(worker.worker_id)
            ladders.append(() if worker is None else worker.shares)
        return ladders

    def up_to(self, phase: Phase, share: float) -> Place | None:
        """Return a free worker's greatest rung up to `share` and to what is left."""
        idle = self._idle(phase)
        most = min(self.left, share) + _EPSILON
        rungs = [rung for rung in _ladder(idle) if rung <= most]
        return _first_with(idle, rungs[-1]) if rungs else None

    def at(self, phase: Phase, rung: float) -> Place | None:
        """Return a free worker with that rung, the most specialised one; None where there is none,
        or less is left."""
        if rung > self.left + _EPSILON:
            return None
        return _first_with(self._idle(phase), rung)

    def num_workers(self, phase: Phase) -> int:
        """Return how many workers run `phase`."""
        return len(self._by_phase[phase])

    def rest(self, phase: Phase) -> Place | None:
        """Return a free worker's largest rung within what is left."""
        return self.up_to(phase, 1.0)

    def _rungs(self, phase: Phase) -> list[float]:
        return _ladder(self._by_phase[phase])

    def _leaves_room(self, rung: float, phase: Phase, other: Phase) -> bool:
        """True where a worker could run `phase` at `rung` and a second one `other` beside it."""
        return any(
            first is not second and rung + second.shares[0] <= 1.0 + _EPSILON
            for first in self._by_phase[phase]
            if rung in first.shares
            for second in self._by_phase[other]
        )

    def num_free(self, phase: Phase) -> int:
        """Return for how many jobs of `phase` there is a worker now."""
        num_idle = len(self._idle(phase))
        return min(1, num_idle) if self.is_exclusive else num_idle

    def _idle(self, phase: Phase) -> list[WorkerSpec]:
        if self.is_exclusive and self._running:
            return []
        running = self._running
        return [worker for worker in self._by_phase[phase] if worker.worker_id not in running]

    def check(self) -> None:
        """Raise AssertionError where running jobs hold more than the whole."""
        assert self.left >= -_EPSILON, f"running shares sum to {1.0 - self.left}"
        for job in self.running:
            assert job.phase in self.phases(job.worker_id), f"job {job.job_id} is misplaced"
        for job in self._followers.values():
            before = self._running[job.worker_id]
            assert self.follower(before) is job, f"job {job.job_id} follows none that runs"
            assert set(job.rows.table_rows.tolist()) <= set(before.rows.table_rows.tolist()), (
                "rows came"
            )


def _maximal(ladders: Sequence[Rungs], most: float) -> tuple[Rungs, ...]:
    """Return the choices of a rung or 0 for each, in sum up to `most`, none of which could grow."""
    choices = [(0.0, *sorted(ladder)) for ladder in ladders]
    fitting = {each for each in product(*choices) if sum(each) <= most}

    def may_grow(rungs: Rungs) -> bool:
        left = most - sum(rungs)
        return any(
            any(own < rung <= own + left for rung in ladder)
            for own, ladder in zip(rungs, choices, strict=True)
        )

    return tuple(sorted(each for each in fitting if not may_grow(each)))


def _ladder(workers: Sequence[WorkerSpec]) -> list[float]:
    ladders = {worker.shares for worker in workers}
    return sorted({rung for ladder in ladders for rung in ladder})


def _nearest(rungs: Sequence[float], share: float) -> float:
    """The rung nearest to `share`, the larger of two; shares are told apart to a millionth."""
    return min(rungs, key=lambda rung: (round(abs(rung - share), 6), -rung))


def _first_with(workers: Sequence[WorkerSpec], rung: float) -> Place | None:
    for worker in workers:
        if rung in worker.shares:
            return Place(worker.worker_id, rung)
    return None
