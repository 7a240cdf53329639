"""Mixed batches: prompt chunks and decodes of one model in one forward (Sarathi-Serve).

The right choice where there is one SM partition.
"""

from collections.abc import Sequence

from muxcluster.core.job import Job, Phase
from muxcluster.scheduling.lanes.view import LaneView
from muxcluster.scheduling.state.model import ModelState


class MixedLane:
    """One job at a time at the full share; models rotate."""

    uses_quotas = False
    phases = frozenset({Phase.MIXED})

    def next_jobs(self, view: LaneView, now: float) -> list[Job]:
        """The next model with work that memory lets run, where nothing runs."""
        place = view.shares.full(Phase.MIXED)
        if place is None or view.shares.running:
            return []
        for model in sorted(view.models, key=lambda m: view.last_turn(m, Phase.MIXED)):
            if not view.has_prefill_work(model) and not view.has_decode_work(model):
                continue
            if (job := view.launch(model, Phase.MIXED, place, now)) is not None:
                return [job]
        return []

    def turns(self, view: LaneView) -> list[ModelState]:
        """Nobody: a waiting model has other claims than its turn."""
        return []

    def repeats(self, view: LaneView, jobs: Sequence[Job]) -> bool:
        """No job of this lane only decodes."""
        return False

    def may_follow(self, view: LaneView, job: Job) -> bool:
        """True where no chunk of a prompt could be in the next job, or take its turn."""
        return job.phase is Phase.MIXED and not view.could_prefill()
