"""A rank whose jobs are late at random, each rank in its own way; run in its place.

It is the owner of forked workers if it is given two descriptors, else the one with threads.

MUXCLUSTER_LATE_S: most seconds that a job waits before it begins.
"""

import os
import random
import sys
import time
from pathlib import Path

from muxcluster.core.job import Job
from muxcluster.engine.parallel import rank, rank_owner
from muxcluster.engine.steps.pending_job import PendingJob
from muxcluster.engine.steps.runner import UnitRunner

LATE_S = float(os.environ["MUXCLUSTER_LATE_S"])


class DelayedRunner(UnitRunner):
    """Sleeps before every job, for as long as this rank draws for it."""

    def launch(self, job: Job) -> PendingJob:
        assert self._group is not None
        draw = random.Random(f"{self._group.rank} {job.job_id}")
        time.sleep(draw.choice((0.0, 0.0, draw.uniform(0.0, LATE_S))))
        return super().launch(job)


if __name__ == "__main__":
    rank_owner.UnitRunner = rank.UnitRunner = DelayedRunner
    *numbers, place = sys.argv[1:]
    main = rank_owner.main if len(numbers) == 3 else rank.main
    sys.exit(main(*map(int, numbers), Path(place)))
