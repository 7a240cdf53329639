"""Round robin: prefill and decode on SM partitions in strict rotation, without quotas.

The ablation baseline of MuxServe §5.4: spatial sharing, no adaptive batch scheduling.
"""

from collections.abc import Iterator

from muxcluster.core.job import Phase
from muxcluster.scheduling.lanes.view import LaneView, Proposal

_ORDER = (Phase.PREFILL, Phase.DECODE)


class RoundRobinLane:
    """One prefill job and one decode job at a time, each phase rotating over the models.

    On a single worker the phases alternate. There is no urgency, and no phase holds the other back.
    """

    uses_quotas = False
    phases = frozenset(_ORDER)
    takes_turns = False
    may_pipeline = False  # the rotation is strict: what comes next is decided when a job ends

    def proposals(self, view: LaneView, now: float) -> Iterator[Proposal]:
        """A job of each phase that has none running, the phase that waited longer first."""
        phases = _ORDER[::-1] if view.last_phase is Phase.PREFILL else _ORDER
        for phase in phases:
            if not view.shares.has_running(phase):
                yield from self._of_phase(view, phase)

    def _of_phase(self, view: LaneView, phase: Phase) -> Iterator[Proposal]:
        """The next model in the rotation that has work which memory lets run."""
        other = Phase.DECODE if phase is Phase.PREFILL else Phase.PREFILL
        shares, models = view.shares, view.models
        place = shares.rest(phase) if shares.running else shares.beside(phase, other)
        if place is None:
            return
        has_work = view.has_prefill_work if phase is Phase.PREFILL else view.has_decode_work
        turns = [view.last_turn(model, phase) for model in models]
        first = turns.index(max(turns)) + 1 if any(turns) else 0
        for model in (*models[first:], *models[:first]):
            if has_work(model):
                yield Proposal(model, phase, place)
                if shares.has_running(phase):
                    return
