"""A memory owner whose replaced workers take long to start; run in the place of the real one.

MUXCLUSTER_START_S: seconds that they sleep, without using the processor, before they take jobs.
"""

import os
import sys
import time
from collections.abc import Sequence

from muxcluster.engine.workers import owner
from muxcluster.engine.workers.worker import Worker

START_S = float(os.environ["MUXCLUSTER_START_S"])
MADE: set[int] = set()


class SlowOwner(owner.Owner):
    """Notes which workers it has made; a fork has the notes of its owner."""

    def _fork(self, child_id: int, descriptors: Sequence[int]) -> int:
        owner.Worker = SlowWorker if child_id in MADE else Worker
        pid = super()._fork(child_id, descriptors)
        MADE.add(child_id)
        return pid


class SlowWorker(Worker):
    """Comes late."""

    def serve(self) -> None:
        time.sleep(START_S)
        super().serve()


if __name__ == "__main__":
    owner.Owner = SlowOwner
    sys.exit(owner.main(int(sys.argv[1]), int(sys.argv[2])))
