"""A memory owner whose workers break on certain prompts; run in the place of the real one.

A job breaks where a row's tokens contain the marks of a fate: its worker kills itself, hangs, or
raises.
"""

import os
import signal
import sys

from muxcluster.core.job import Job
from muxcluster.engine.steps.pending_job import PendingJob
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.engine.workers import owner

MARKS = {
    "dies": [11, 12, 11, 12, 13],
    "hangs": [11, 12, 11, 12, 14],
    "raises": [11, 12, 11, 12, 15],
}


def _contains(tokens: list[int], mark: list[int]) -> bool:
    return any(tokens[i : i + len(mark)] == mark for i in range(len(tokens) - len(mark) + 1))


class FaultyRunner(UnitRunner):
    """Runs a job unless one of its rows is marked."""

    def launch(self, job: Job) -> PendingJob:
        history = self.arena.model(job.model).history
        told = {a.row: a.tokens.tolist() for a in job.admissions if len(a.tokens)}
        for row, start in zip(job.rows.table_rows.tolist(), job.rows.starts.tolist(), strict=True):
            tokens = told.get(row) or history[row, : start + 1].tolist()
            for fate, mark in MARKS.items():
                if _contains(tokens, mark):
                    _break(fate)
        return super().launch(job)


def _break(fate: str) -> None:
    if fate == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    while fate == "hangs":
        signal.pause()
    raise RuntimeError("an unlucky prompt")


if __name__ == "__main__":
    owner.UnitRunner = FaultyRunner
    sys.exit(owner.main(int(sys.argv[1]), int(sys.argv[2])))
