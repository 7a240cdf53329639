"""A GPU worker that breaks where a fate is in the environment; run in the place of the real one.

MUXCLUSTER_FATE: "lost" (its context is lost in its third job, once: the file MUXCLUSTER_FATE_DONE
says so), "whole" (sees all multiprocessors whatever its share), "slow" (once MUXCLUSTER_FATE_DONE
is there, it sleeps MUXCLUSTER_START_S seconds before it starts).
"""

import os
import sys
import time
from pathlib import Path

from muxcluster.core.job import Job
from muxcluster.engine.gpu import context
from muxcluster.engine.gpu.context import ContextLost
from muxcluster.engine.gpu.mps import worker

FATE = os.environ.get("MUXCLUSTER_FATE", "")
DONE = Path(os.environ.get("MUXCLUSTER_FATE_DONE", "/nonexistent"))
_LOST_JOB = 3


class LosingRunner(context.SettledRunner):
    """Loses its context in a job."""

    num_jobs = 0

    def launch(self, job: Job) -> context.SettledJob:
        LosingRunner.num_jobs += 1
        if LosingRunner.num_jobs == _LOST_JOB and not DONE.exists():
            DONE.touch()
            raise ContextLost("an illegal access")
        return super().launch(job)


def open_whole(device, spec, environment) -> None:
    context.open_context(device, spec, {})


if __name__ == "__main__":
    if FATE == "whole":
        worker.open_context = open_whole
    if FATE == "slow" and DONE.exists():
        time.sleep(float(os.environ["MUXCLUSTER_START_S"]))
    if FATE == "lost":
        worker.SettledRunner = LosingRunner
    sys.exit(worker.main(int(sys.argv[1]), int(sys.argv[2])))
