"""Every job reaches the pushed statistics exactly once and the timeline as well."""

import random

from muxcluster.cluster.units.job_tap import JobTap
from muxcluster.core.served import JobRecord, UnitStats


class DrainOnce:
    """A unit's `stats`: hands finished jobs out once."""

    def __init__(self) -> None:
        self.done: list[JobRecord] = []
        self.count = 0

    def finish(self, count: int) -> None:
        for _ in range(count):
            job = JobRecord(self.count, "m", "decode", 0, 0.5, 0.0, 1.0, 1, 1)
            self.done.append(job)
            self.count += 1

    def __call__(self) -> UnitStats:
        jobs, self.done = tuple(self.done), []
        return UnitStats("u", 0.0, 8, 8, jobs=jobs)


def test_readers_do_not_rob_each_other() -> None:
    rng = random.Random(7)
    unit = DrainOnce()
    tap = JobTap(unit)
    pushed: list[int] = []
    for _ in range(300):
        unit.finish(rng.randrange(4))
        choice = rng.randrange(3)
        if choice == 0:
            pushed += [job.job_id for job in tap.pushed().jobs]
        elif choice == 1:
            assert tap.peek().jobs == ()
        else:
            assert [job.job_id for job in tap.timeline()] == list(range(unit.count))
    pushed += [job.job_id for job in tap.pushed().jobs]
    assert pushed == list(range(unit.count))


def test_timeline_is_bounded_to_the_newest() -> None:
    unit = DrainOnce()
    tap = JobTap(unit, max_records=5)
    unit.finish(12)
    assert [job.job_id for job in tap.timeline()] == [7, 8, 9, 10, 11]
