"""Temporal multiplexing: the whole GPU for one job at a time, continuous batching, FCFS.

The baseline of MuxServe §5 (AlpaServe's sharing with continuous batching).
"""

from collections.abc import Sequence

from muxcluster.core.job import Job, Phase
from muxcluster.scheduling.lanes.view import LaneView
from muxcluster.scheduling.state.model import ModelState


class TemporalLane:
    """The oldest prompt of any model first; where none can start, decodes in round robin."""

    uses_quotas = False
    phases = frozenset({Phase.PREFILL, Phase.DECODE})

    def next_jobs(self, view: LaneView, now: float) -> list[Job]:
        """One job where nothing runs."""
        if view.shares.running:
            return []
        prompts = [model for model in view.models if view.has_prefill_work(model)]
        decodes = [model for model in view.models if view.has_decode_work(model)]
        turns = [(model, Phase.PREFILL) for model in sorted(prompts, key=_oldest_prompt)]
        decodes.sort(key=lambda model: view.last_turn(model, Phase.DECODE))
        turns += [(model, Phase.DECODE) for model in decodes]
        for model, phase in turns:
            place = view.shares.full(phase)
            if place is not None and (job := view.launch(model, phase, place, now)) is not None:
                return [job]
        return []

    def turns(self, view: LaneView) -> list[ModelState]:
        """All that decode and have no job, by their last turn."""
        busy = view.shares.running_models(Phase.DECODE)
        decodes = [m for m in view.models if m.name not in busy and view.has_decode_work(m)]
        return sorted(decodes, key=lambda model: view.last_turn(model, Phase.DECODE))

    def repeats(self, view: LaneView, jobs: Sequence[Job]) -> bool:
        """Whoever's turn it is has the whole GPU."""
        shares = view.shares
        return all(shares.would_repeat(job, lambda: shares.full(Phase.DECODE)) for job in jobs)

    def may_follow(self, view: LaneView, job: Job) -> bool:
        """True where no prompt could go first."""
        return not view.could_prefill() and self.repeats(view, [job])


def _oldest_prompt(model: ModelState) -> int:
    """Seniority of the first prompt that the packing would take."""
    prefilling = model.slots.idle_prefilling()
    if len(prefilling):
        return int(model.slots.seniority[prefilling[0]])
    if (head := model.waiting.head) is not None:
        return head.seniority
    return int(model.slots.seniority[model.slots.idle_lent()].min())
