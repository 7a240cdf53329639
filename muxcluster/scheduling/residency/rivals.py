"""Baselines for the simulator and benches: one model at a time, and none that moves."""

import math
from collections.abc import Sequence

from muxcluster.scheduling.residency.policy import Room, Standing, Turn, first


class _Baseline:
    """What baselines have in common: nothing is kept, foreseen or told."""

    foresees = False

    def keeps_s(self, wake_s: float, *, has_token: bool) -> float:
        return 0.0

    def drain_s(self, wake_s: float) -> float:
        return math.inf

    def room_for(self, each: Standing, models: Sequence[Standing], free: int, now: float) -> Room:
        return Room(0.0, 0.0)

    def ahead(self, models: Sequence[Standing], free: int, room: int, now: float) -> Turn:
        return Turn()


class OneAtATime(_Baseline):
    """A baseline: one model is resident, requests have it by arrival, as behind llama-swap.

    A request for another model waits until what came before it is in jobs, then until these
    sequences have ended; then models swap.
    """

    refuses_absent = False

    def turn(self, models: Sequence[Standing], free: int, now: float, promised: str | None) -> Turn:
        claims = [each for each in models if each.is_claim]
        if not claims:
            return Turn()
        claim = first(claims, promised, lambda each: each.waits_since_s)
        before = [each for each in models if each.may_leave]
        if not before and claim.num_bytes > free:
            return Turn()
        if any(each.oldest_queued_s <= claim.waits_since_s for each in before):
            return Turn()
        return Turn(claim.name, tuple([each.name for each in before]))


class Static(_Baseline):
    """A baseline: what is resident at the start stays, and nothing else is served."""

    refuses_absent = True

    def turn(self, models: Sequence[Standing], free: int, now: float, promised: str | None) -> Turn:
        lost = [each for each in models if each.is_claim and each.due_s == -math.inf]
        return Turn(lost[0].name) if lost else Turn()
