"""ADBS where sharing the SMs pays, `mixed` where it does not (DESIGN.md §4)."""

from collections.abc import Iterator

from muxcluster.core.job import Phase
from muxcluster.scheduling.lanes.adbs import AdbsLane
from muxcluster.scheduling.lanes.mixed import MixedLane
from muxcluster.scheduling.lanes.sharing_gain import SharingJudge
from muxcluster.scheduling.lanes.view import LaneView, Proposal


class UnsharingLane:
    """Does what the judge says; quotas hold both ways.

    A change waits for running jobs: a mixed job takes all SMs, and starts only where none runs.
    """

    uses_quotas = True
    phases = frozenset(Phase)
    takes_turns = False
    may_pipeline = True

    def __init__(self, judge: SharingJudge) -> None:
        self._judge = judge
        self._shared, self._mixed = AdbsLane(), MixedLane()

    def proposals(self, view: LaneView, now: float) -> Iterator[Proposal]:
        """Those of ADBS, or the next mixed one."""
        lane = self._shared if self._judge.shares else self._mixed
        return lane.proposals(view, now)
