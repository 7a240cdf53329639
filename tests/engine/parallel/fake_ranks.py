"""Ranks as state machines: what each does next, and when, is drawn; no clock, no process.

Every (rank, worker) has a stream of jobs that it runs in order. A job needs its share of the rank's
SMs, and waits for them if others hold them. It meets the worker's other ranks in collectives, each
of which blocks until all are there.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from muxcluster.channel.codec import Done
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from tests.scheduling.fake_worker import FakeMemory

EPSILON = 1e-6
MOST_COLLECTIVES = 3


class WrongMeeting(Exception):
    """Ranks meet in collectives of different jobs: NCCL would mix their data or hang."""


@dataclass
class Place:
    """One worker on one rank."""

    rank: int
    worker_id: int
    waiting: deque[Job] = field(default_factory=deque)
    running: Job | None = None
    num_left: int = 0
    is_in_collective: bool = False
    begun: list[int] = field(default_factory=list)


class FakeRanks:
    """All ranks of a unit, with a memory each."""

    def __init__(self, spec: UnitSpec, num_ranks: int, draw: random.Random) -> None:
        """One stream a rank or one for each of its workers, as drawn; so are the ranks' speeds."""
        self._draw = draw
        workers = [worker.worker_id for worker in spec.workers]
        self.num_ranks = num_ranks
        self._memories = [FakeMemory(spec) for _ in range(num_ranks)]
        self.places = {(r, w): Place(r, w) for r in range(num_ranks) for w in workers}
        self._is_one_stream = draw.random() < 0.5
        self.coming: dict[tuple[int, int], deque[Job]] = {}
        self._said: dict[tuple[int, int], deque[tuple[int, Done]]] = {}
        self._speeds = [draw.choice((1.0, 1.0, 0.1, 0.01)) for _ in range(num_ranks)]
        self.most_held = 0.0
        self.most_together = 0  # workers that run on a rank at a time
        self.num_waits_for_sms = 0

    def send(self, job: Job) -> None:
        for rank in range(self.num_ranks):
            self.coming.setdefault(self._stream(rank, job.worker_id), deque()).append(job)

    def act(self, hear: Callable[[int, int, Done], None]) -> bool:
        """Let something happen; False if nothing can. hear: of a worker, a rank and its answer."""
        able = [
            *((rank, self._deliver, key) for key in self.coming if (rank := key[0]) >= 0),
            *((key[0], self._speak, (key, hear)) for key in self._said),
        ]
        for place in self.places.values():
            if place.running is None:
                if place.waiting and self._has_room(place):
                    able.append((place.rank, self._begin, place))
            elif not place.num_left:
                able.append((place.rank, self._end, place))
            elif not place.is_in_collective:
                able.append((place.rank, self._enter, place))
        if not able:
            return False
        weights = [self._speeds[rank] for rank, _, _ in able]
        ((_, action, argument),) = self._draw.choices(able, weights)
        action(argument)
        return True

    def orders(self, worker_id: int) -> list[list[int]]:
        """The worker's jobs as each rank began them."""
        return [self.places[rank, worker_id].begun for rank in range(self.num_ranks)]

    def _stream(self, rank: int, worker_id: int) -> tuple[int, int]:
        return (rank, -1) if self._is_one_stream else (rank, worker_id)

    def _deliver(self, key: tuple[int, int]) -> None:
        job = self.coming[key].popleft()
        if not self.coming[key]:
            del self.coming[key]
        place = self.places[key[0], job.worker_id]
        place.waiting.append(job)
        if place.running is None and not self._has_room(place):
            self.num_waits_for_sms += 1

    def _held(self, rank: int) -> float:
        return sum(job.share for job in self._running(rank))

    def _running(self, rank: int) -> list[Job]:
        places = (place for place in self.places.values() if place.rank == rank)
        return [place.running for place in places if place.running is not None]

    def _has_room(self, place: Place) -> bool:
        return self._held(place.rank) + place.waiting[0].share <= 1.0 + EPSILON

    def _begin(self, place: Place) -> None:
        job = place.running = place.waiting.popleft()
        place.begun.append(job.job_id)
        place.num_left = random.Random(job.job_id).randint(0, MOST_COLLECTIVES)
        self.most_held = max(self.most_held, self._held(place.rank))
        self.most_together = max(self.most_together, len(self._running(place.rank)))

    def _enter(self, place: Place) -> None:
        """Enter the next collective; it ends if the worker is in it on all ranks."""
        place.is_in_collective = True
        group = [self.places[rank, place.worker_id] for rank in range(self.num_ranks)]
        if not all(each.is_in_collective for each in group):
            return
        met = {(each.running.job_id, each.num_left) for each in group if each.running}
        if len(met) > 1:
            raise WrongMeeting(f"worker {place.worker_id}: {sorted(met)}")
        for each in group:
            each.num_left -= 1
            each.is_in_collective = False

    def _end(self, place: Place) -> None:
        assert place.running is not None
        answer = Done(self._memories[place.rank].run(place.running))
        key = self._stream(place.rank, place.worker_id)
        self._said.setdefault(key, deque()).append((place.worker_id, answer))
        place.running = None

    def _speak(self, arguments: tuple[tuple[int, int], Callable[[int, int, Done], None]]) -> None:
        key, hear = arguments
        worker_id, answer = self._said[key].popleft()
        if not self._said[key]:
            del self._said[key]
        hear(worker_id, key[0], answer)


def swap_a_pair(ranks: FakeRanks, rank: int) -> Sequence[int]:
    """Swap two jobs of one worker that are on their way to `rank`; their ids, or nothing."""
    for key, jobs in ranks.coming.items():
        for first in range(len(jobs) - 1) if key[0] == rank else ():
            for second in range(first + 1, len(jobs)):
                if jobs[first].worker_id == jobs[second].worker_id:
                    jobs[first], jobs[second] = jobs[second], jobs[first]
                    return jobs[first].job_id, jobs[second].job_id
    return ()
