"""Mixed batches: prompt chunks and decodes of one model in one forward (Sarathi-Serve).

The right choice where there is one SM partition.
"""

from collections.abc import Iterator

from muxcluster.core.job import Phase
from muxcluster.scheduling.lanes.view import LaneView, Proposal


class MixedLane:
    """One job at a time at the full share; models rotate.

    While an interactive request waits for its first job, models with batch work alone wait too.
    """

    phases = frozenset({Phase.MIXED})
    takes_turns = True
    may_pipeline = True

    def __init__(self, *, uses_quotas: bool = False) -> None:
        self.uses_quotas = uses_quotas

    def proposals(self, view: LaneView, now: float) -> Iterator[Proposal]:
        """Where nothing runs, the next model with work that memory lets run."""
        place = view.shares.full(Phase.MIXED)
        if place is None or view.shares.running:
            return
        models = sorted(view.models, key=lambda m: view.last_turn(m, Phase.MIXED))
        if any(map(view.is_awaited, models)):
            models.sort(key=lambda m: view.may_wait(m, Phase.MIXED))
        for model in models:
            if view.has_prefill_work(model) or view.has_decode_work(model):
                yield Proposal(model, Phase.MIXED, place)
                if view.shares.running:
                    return
