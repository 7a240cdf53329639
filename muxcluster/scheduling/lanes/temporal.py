"""Temporal multiplexing: the whole GPU for one job at a time, continuous batching, FCFS.

The baseline of MuxServe §5 (AlpaServe's sharing with continuous batching).
"""

from collections.abc import Iterator

from muxcluster.core.job import Phase
from muxcluster.scheduling.lanes.view import LaneView, Proposal
from muxcluster.scheduling.state.model import ModelState


class TemporalLane:
    """The oldest prompt of any model first; where none can start, decodes in round robin."""

    uses_quotas = False
    phases = frozenset({Phase.PREFILL, Phase.DECODE})
    takes_turns = True
    may_pipeline = True

    def proposals(self, view: LaneView, now: float) -> Iterator[Proposal]:
        """One job where nothing runs."""
        if view.shares.running:
            return
        prompts = [model for model in view.models if view.has_prefill_work(model)]
        decodes = [model for model in view.models if view.has_decode_work(model)]
        turns = [(model, Phase.PREFILL) for model in sorted(prompts, key=_oldest_prompt)]
        decodes.sort(key=lambda model: view.last_turn(model, Phase.DECODE))
        turns += [(model, Phase.DECODE) for model in decodes]
        for model, phase in turns:
            place = view.shares.full(phase)
            if place is not None:
                yield Proposal(model, phase, place)
                if view.shares.running:
                    return


def _oldest_prompt(model: ModelState) -> int:
    """Return the seniority of the first prompt that the packing would take."""
    table, waiting = model.running, model.waiting
    for rows in (table.idle_suspects(are_prefilling=True), table.idle_prefilling()):
        if len(rows):
            return int(table.seniority[rows[0]])
    for head in (waiting.suspects.head, waiting.head):
        if head is not None:
            return head.seniority
    return int(table.seniority[table.idle_lent()].min())
