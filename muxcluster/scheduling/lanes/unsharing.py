"""ADBS where sharing the SMs pays, `mixed` where it does not (DESIGN.md §4)."""

from collections.abc import Sequence

from muxcluster.core.job import Job, Phase
from muxcluster.scheduling.lanes.adbs import AdbsLane
from muxcluster.scheduling.lanes.mixed import MixedLane
from muxcluster.scheduling.lanes.sharing_gain import SharingJudge
from muxcluster.scheduling.lanes.view import LaneView
from muxcluster.scheduling.state.model import ModelState


class UnsharingLane:
    """Does what the judge says; quotas hold both ways.

    A change waits for running jobs: a mixed job takes all SMs, and starts only where none runs.
    """

    uses_quotas = True
    phases = frozenset(Phase)

    def __init__(self, judge: SharingJudge) -> None:
        self._judge = judge
        self._shared, self._mixed = AdbsLane(), MixedLane()

    def next_jobs(self, view: LaneView, now: float) -> list[Job]:
        """Those of ADBS, or the next mixed one."""
        if self._judge.shares:
            return self._shared.next_jobs(view, now)
        return self._mixed.next_jobs(view, now)

    def turns(self, view: LaneView) -> Sequence[ModelState]:
        """Nobody: a waiting model has other claims than its turn."""
        return []

    def repeats(self, view: LaneView, jobs: Sequence[Job]) -> bool:
        """Never: each job that ends may be the one that changes the judge's mind."""
        return False

    def may_follow(self, view: LaneView, job: Job) -> bool:
        """As the lane that rules now says; a change of mind waits for one job more."""
        is_shared = job.phase is Phase.DECODE
        if is_shared is not self._judge.shares:
            return False
        return (self._shared if is_shared else self._mixed).may_follow(view, job)
