"""A memory owner whose replaced workers take long to start; run in the place of the real one.

MUXCLUSTER_START_S: seconds that they sleep, without using the processor, before they take jobs.
"""

import os
import sys
import time

from muxcluster.engine.workers import owner
from muxcluster.engine.workers.worker import Worker

START_S = float(os.environ["MUXCLUSTER_START_S"])
MADE: set[int] = set()


class SlowOwner(owner.Owner):
    """Notes which workers it has made; a fork has the notes of its owner."""

    def _fork(self, worker_id: int, descriptor: int) -> None:
        owner.Worker = SlowWorker if worker_id in MADE else Worker
        super()._fork(worker_id, descriptor)
        MADE.add(worker_id)


class SlowWorker(Worker):
    """Comes late."""

    def serve(self) -> None:
        time.sleep(START_S)
        super().serve()


if __name__ == "__main__":
    owner.Owner = SlowOwner
    sys.exit(owner.main(int(sys.argv[1]), int(sys.argv[2])))
