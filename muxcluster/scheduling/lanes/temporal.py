"""Temporal multiplexing: the whole GPU for one job at a time, continuous batching, FCFS.

The baseline of MuxServe §5 (AlpaServe's sharing with continuous batching).
"""

from collections.abc import Sequence

from muxcluster.core.job import Job, Phase
from muxcluster.scheduling.lanes.desk import Desk
from muxcluster.scheduling.modelstate import ModelState


class TemporalLane:
    """The oldest prompt of any model first; where none can start, decodes in round robin."""

    uses_quotas = False
    phases = frozenset({Phase.PREFILL, Phase.DECODE})

    def next_jobs(self, desk: Desk, now: float) -> list[Job]:
        """One job where nothing runs."""
        if desk.shares.running:
            return []
        prompts = [model for model in desk.models if desk.has_prefill_work(model)]
        decodes = [model for model in desk.models if desk.has_decode_work(model)]
        turns = [(model, Phase.PREFILL) for model in sorted(prompts, key=_oldest_prompt)]
        decodes.sort(key=lambda model: desk.last_turn(model, Phase.DECODE))
        turns += [(model, Phase.DECODE) for model in decodes]
        for model, phase in turns:
            place = desk.shares.full(phase)
            if place is not None and (job := desk.launch(model, phase, place, now)) is not None:
                return [job]
        return []

    def turns(self, desk: Desk) -> list[ModelState]:
        """All that decode and have no job, by their last turn."""
        busy = desk.shares.running_models(Phase.DECODE)
        decodes = [m for m in desk.models if m.name not in busy and desk.has_decode_work(m)]
        return sorted(decodes, key=lambda model: desk.last_turn(model, Phase.DECODE))

    def repeats(self, desk: Desk, jobs: Sequence[Job]) -> bool:
        """Whoever's turn it is has the whole GPU."""
        shares = desk.shares
        return all(shares.would_repeat(job, lambda: shares.full(Phase.DECODE)) for job in jobs)

    def may_follow(self, desk: Desk, job: Job) -> bool:
        """True where no prompt could go first."""
        return not desk.could_prefill() and self.repeats(desk, [job])


def _oldest_prompt(model: ModelState) -> int:
    """Seniority of the first prompt that the packing would take."""
    prefilling = model.slots.idle_prefilling()
    if len(prefilling):
        return int(model.slots.seniority[prefilling[0]])
    if (head := model.waiting.head) is not None:
        return head.seniority
    return int(model.slots.seniority[model.slots.idle_lent()].min())
