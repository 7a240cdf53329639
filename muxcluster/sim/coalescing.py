"""Many decode steps as one event, as long as the scheduler would choose the same again and again.

After a decode step that ended nobody, the scheduler launches the same rows at the same share unless
something else happened in between. So a decode job is launched for many steps at once, and when
something happens that may change a decision it is made to end with the step that it is in, which
is when the scheduler would have been asked. What is left of an error: blocks of the steps ahead are
taken early, jobs that would trade a little share at each other's ends keep what they have, and
where models take turns on one worker a turn is several steps long.
"""

from collections.abc import Sequence

from muxcluster.core.job import Job, Phase
from muxcluster.scheduling.scheduler import UnitScheduler
from muxcluster.sim.concurrency import Concurrency, Running

_LONGEST = 64
"""Steps of a launch where nothing waits: blocks taken early are nobody's loss."""
_SHORT_OF_BLOCKS = 4
"""Steps where prompts wait: blocks taken early keep them out (at 330 tokens a sequence, 0.6 %)."""
_TURN = 4
"""Steps of a turn where models share a worker."""
_EPSILON = 1e-6


class Coalescing:
    """Chooses `max_steps`, and cuts running jobs short, for one unit."""

    def __init__(self, scheduler: UnitScheduler, jobs: Concurrency, smallest_share: float) -> None:
        self._scheduler = scheduler
        self._jobs = jobs
        self._smallest = smallest_share
        self._is_settled = True
        self._takes_turns = False
        self._joined: set[str] = set()
        self._shares: dict[str, float] = {}

    def stir(self, joined: str | None = None) -> None:
        """Something happened that is more than a decode step.

        joined: the model whose next decode step may have other rows.
        """
        self._is_settled = False
        if joined is not None:
            self._joined.add(joined)

    def before_launch(self) -> None:
        """`next_jobs` is about to be asked."""
        steps = _TURN if self._takes_turns else _LONGEST
        if self._scheduler.has_waiting(Phase.PREFILL):
            steps = min(steps, _SHORT_OF_BLOCKS)
        self._scheduler.max_steps = steps

    def after_launch(self, launched: Sequence[Running], now: float) -> None:
        """`launched` is what `next_jobs` answered at `now`; running jobs are cut where needed."""
        for entry in launched:
            if entry.job.phase is Phase.DECODE:
                self._note_share(entry.job)
        if self._is_settled:
            return
        self._is_settled = True
        running = [e for e in self._jobs.running if e.num_steps > 1 and e not in launched]
        for entry in running:
            if entry.job.model in self._joined:
                self._jobs.cut(entry, now)
        self._joined.clear()
        self._cut_for_shares(running, now)

    def _note_share(self, job: Job) -> None:
        if self._shares.get(job.model) != job.share:
            self._shares[job.model] = job.share
            self._is_settled = False

    def _cut_for_shares(self, running: Sequence[Running], now: float) -> None:
        """Let the scheduler divide the SMs anew, where it would."""
        scheduler = self._scheduler
        has_prefill = any(e.job.phase is Phase.PREFILL for e in self._jobs.running)
        if not has_prefill and scheduler.has_waiting(Phase.PREFILL):
            for entry in running:
                self._jobs.cut(entry, now)
            return
        self._takes_turns = scheduler.has_waiting(Phase.DECODE)
        if running and (self._takes_turns or scheduler.share_left >= self._smallest - _EPSILON):
            self._jobs.cut(min(running, key=self._jobs.step_end), now)
