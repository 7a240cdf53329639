"""Executor of a unit whose models are divided over ranks: one process per GPU.

Every rank gets every job, in one order and one at a time. A lost rank loses all: its peers wait for
it inside a collective, and its part of the pool is gone.
"""

import selectors
import time
from collections import deque
from collections.abc import Sequence

from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobDone, Outcome, StillRunning
from muxcluster.engine.parallel.answers import Answers, OutOfStep
from muxcluster.engine.parallel.rank_link import RankLink, RankLost
from muxcluster.engine.parallel.team import RankTeam
from muxcluster.engine.processes.child_executor import ChildExecutor
from muxcluster.engine.processes.liveness import Patience


class RanksExecutor(ChildExecutor):
    """Executor of `spec.tp` ranks; if one is lost all are ended, and the unit starts them again.

    Lost means dead, hung, or out of step with the others. Workers of the unit take turns in the
    ranks' one queue: jobs of several workers do not overlap.
    """

    def __init__(self, spec: UnitSpec, patience: Patience | None = None) -> None:
        super().__init__(spec, patience)
        self._team: RankTeam | None = None
        self._queue: deque[Job] = deque()
        self._answers: Answers | None = None
        self._loss = ""
        self._give_up_s = time.monotonic()

    @property
    def rank_pids(self) -> tuple[int, ...]:
        """Process ids of the ranks in order."""
        assert self._team is not None, "not started"
        return tuple(link.pid for link in self._team.links)

    def launch(self, job: Job) -> None:
        self._queue.append(job)
        self._begin()

    def wait(self, timeout_s: float | None) -> Sequence[Outcome]:
        ready = self._speaking(timeout_s)
        outcomes: list[Outcome] = []
        try:
            if self._loss:
                raise RankLost(self._loss)
            for link in ready:
                outcomes.extend(self._take(link))
            if self._is_beat_due():
                outcomes.extend(self._beat())
        except (RankLost, OutOfStep) as loss:
            message = f"the ranks of {self._spec.unit_id} are lost: {loss}"
            return [*outcomes, self._lose_all(message)]
        return outcomes

    def _make_processes(self) -> None:
        self._team = RankTeam(self._spec, self._patience)
        try:
            self._team.load()
        except BaseException:
            self._team.kill()  # some may wait for others inside a collective
            raise
        self._queue.clear()
        self._answers = None
        self._loss = ""
        for link in self._team.links:
            self._selector.register(link, selectors.EVENT_READ, link)

    def _kill_processes(self) -> None:
        team = self._team
        if team is not None:
            team.kill()

    def _begin(self) -> None:
        """Give the ranks the next job, if they have none. `wait` reports a lost rank."""
        if self._answers is not None or not self._queue:
            return
        assert self._team is not None, "launch before start"
        job = self._queue.popleft()
        self._answers = Answers(job, self._spec.tp)
        self._give_up_s = time.monotonic() + self._limits.limit_s(job)
        try:
            for link in self._team.links:
                link.launch(job)
        except RankLost as loss:
            self._loss = str(loss)
            self._wakes.wake()

    def _take(self, link: RankLink) -> Sequence[Outcome]:
        """Take the rank's answer; return the outcome once complete. Raises RankLost, OutOfStep."""
        answer, answers = link.hear(), self._answers
        assert answers is not None, f"rank {link.rank} speaks without a job"
        answers.take(link.rank, answer)
        if answers.is_split:
            self._give_up_s = min(self._give_up_s, time.monotonic() + self._patience.silence_s)
        outcome = answers.outcome()
        if outcome is None:
            return []
        if isinstance(outcome, JobDone):
            self._limits.measured(answers.job, outcome.result.seconds)
            self._losses.job_finished()
        self._answers = None
        self._begin()
        return [outcome]

    def _beat(self) -> Sequence[Outcome]:
        """Take every pulse. Raises RankLost if a rank hangs, or a job does not end."""
        assert self._team is not None, "not started"
        self._team.beat()
        self._is_doubtful = self._team.is_doubtful
        if self._answers is None:
            return []
        if time.monotonic() > self._give_up_s:
            raise RankLost("a job did not come to an end")
        return [StillRunning()] if self._team.shows_work else []

    def _drop_processes(self) -> None:
        if self._team is None:
            return
        for link in self._team.links:
            if link in self._selector.get_map():
                self._selector.unregister(link)
        self._team.stop()
        self._team = None
