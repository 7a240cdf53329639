"""Seats: where a unit's jobs run, each with a runner and sampling rules of its own.

A worker slot is one seat where its shares can change from job to job (threads of a CPU), and a
seat a rung where a share is fixed when a process or a context is made (MPS, green contexts).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from muxcluster.core.job import Job, WorkerSlot


@dataclass(frozen=True, slots=True)
class Seat:
    """seat_id: its position among the unit's seats. share: the only one it runs at, None: any."""

    seat_id: int
    worker_id: int
    share: float | None = None


def slot_seats(workers: Sequence[WorkerSlot]) -> tuple[Seat, ...]:
    """One seat a worker slot, of the slot's own id."""
    return tuple(Seat(worker.worker_id, worker.worker_id) for worker in workers)


def rung_seats(workers: Sequence[WorkerSlot]) -> tuple[Seat, ...]:
    """One seat a worker slot and rung of its ladder, slots and rungs in order."""
    rungs = [(worker.worker_id, share) for worker in workers for share in worker.shares]
    return tuple(Seat(seat_id, *rung) for seat_id, rung in enumerate(rungs))


class SeatPlan:
    """Finds a job's seat."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self.seats = tuple(seats)
        self._seat_ids = {(seat.worker_id, seat.share): seat.seat_id for seat in seats}

    def seat_of(self, job: Job) -> int:
        """Raises KeyError for a worker or a share that no seat has."""
        seat_id = self._seat_ids.get((job.worker_id, job.share))
        return self._seat_ids[job.worker_id, None] if seat_id is None else seat_id
