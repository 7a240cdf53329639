"""Policies that choose whose weights come to the devices next, and whose leave for them.

Pure functions of what is known of each model. Why no waiting model starves under `ByDeadline`: a
claim is due at a fixed time, at most the target of its first request (batch: the ageing time) after
it arose, and the claim that is due first has the next turn. Requests that come after that time are
due later, so then at most one turn of each other model comes before: of n models, one waits for at
most (target or ageing time) + (n + 1) turns. A turn takes at most the sum of a move that was under
way, the longest time that a model is kept (`keeps_s`), the longest drain, the jobs that a worker
has by then (two), the parks and the wake. Wakes that fail are not counted in that.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from muxcluster.core.residency import DRAIN_WAKES, STAY_WAKES, Residency, WeightState

_LEAST_STAY_S = 0.5  # where wakes take no time, its requests must still get into jobs
# A woken model that got no token may stay longer, for so many least stays and at least so many
# seconds: a long prompt would otherwise begin again at each wake.
_PATIENCE, _PATIENCE_S = 4.0, 10.0
# A batch request that has not waited for the ageing time wakes its model only where the parked one
# expects fewer interactive requests than this until it could be back.
_FEW_ARRIVALS = 0.1
NO_TARGET_S = 10.0  # in which a request without a target is due


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of one model, at one moment."""

    name: str
    num_bytes: int  # on the devices
    residency: Residency
    state: WeightState
    wake_s: float  # that its next wake takes
    rate_per_s: float  # interactive requests, of the last hours
    target_s: float  # in which a first token of its requests is due
    # When the first request that waits for its weights is due, inf: none waits; -inf: the model
    # must always be resident and is not
    due_s: float = math.inf
    waits_since_s: float = math.inf  # when the first of them came, or lost its weights
    is_batch_claim: bool = False  # no interactive request waits for its weights
    is_idle: bool = True  # it has no request
    has_interactive: bool = False  # some request is interactive
    has_interactive_rows: bool = False  # and is not in the queue
    oldest_queued_s: float = math.inf  # when the first in its queue came, where it is resident
    keeps_until_s: float = -math.inf  # end of its least stay
    is_owed: bool = False  # it was woken for batch work that had waited for the ageing time
    last_use_s: float = -math.inf  # its last request came, or its last sequence was in a job
    is_leaving: bool = False  # its memory is promised to another model already
    may_try: bool = True  # its last move did not fail a moment ago
    is_pinned: bool = False  # an operator wants it to stay
    is_put_away: bool = False  # an operator wants its memory back, and no wake but for a request
    # What foresight says (0, inf without it): requests until it could be woken and have stayed, the
    # earliest time of the next one if they are regular, and that it was woken ahead of all of them
    expected: float = 0.0
    visit_s: float = math.inf
    is_ahead: bool = False

    @property
    def is_claim(self) -> bool:
        """True if its weights should be brought here."""
        return self.due_s < math.inf and self.may_try

    @property
    def may_leave(self) -> bool:
        """True if it is resident and may be parked at all."""
        is_bound = self.residency is Residency.ALWAYS or self.is_pinned or not self.may_try
        return self.state is WeightState.RESIDENT and not is_bound

    @property
    def absence_cost(self) -> float:
        """Expected delay of its requests for each second of absence, in targets."""
        return self.rate_per_s * self.wake_s / self.target_s


class Turn(NamedTuple):
    """Whose turn it is, and what must give way to it."""

    wake: str | None = None
    # Resident models that admit no more requests and are parked when their interactive sequences
    # have ended, or `drain_s` have passed
    victims: tuple[str, ...] = ()
    next_s: float = math.inf  # when time alone may change the answer


class Room(NamedTuple):
    """What a wake would have to wait for, and what it would cost others."""

    wait_s: float  # until its memory could be free
    cost_s: float  # expected delay of all requests of those that would leave


class WakePolicy(Protocol):
    """Chooses among models whose weights do not fit together."""

    refuses_absent: bool  # requests to models that are not resident are refused
    foresees: bool  # its decisions follow what requests are expected

    def turn(self, models: Sequence[Standing], free: int, now: float, promised: str | None) -> Turn:
        """Return what to do for the models that requests wait for.

        free: bytes that no model has or is promised; memory of models that are being parked is
        free. promised: the model that has its turn already.
        """
        ...

    def room_for(self, each: Standing, models: Sequence[Standing], free: int, now: float) -> Room:
        """Return what a request of `each`, which is away, would find."""
        ...

    def ahead(self, models: Sequence[Standing], free: int, room: int, now: float) -> Turn:
        """Return a model to wake although nothing waits for any, and who gives way to it.

        free: bytes that no model has. room: bytes of all. next_s: when time alone may change the
        answer, if it is none.
        """
        ...

    def keeps_s(self, wake_s: float, *, has_token: bool) -> float:
        """Return for how long a model that wakes in `wake_s` stays.

        has_token: one of its requests got a token since the wake.
        """
        ...

    def drain_s(self, wake_s: float) -> float:
        """Return for how long interactive sequences of a model may go on after it was chosen to
        leave."""
        ...


class ByDeadline:
    """The request due first has its model woken; those leave whose absence costs least."""

    refuses_absent = False
    foresees = False

    def absence_cost(self, each: Standing) -> float:
        """Return the expected delay that its absence causes, relative to that of others."""
        return each.absence_cost

    def keeps_s(self, wake_s: float, *, has_token: bool) -> float:
        stay_s = max(_LEAST_STAY_S, STAY_WAKES * wake_s)
        return stay_s if has_token else max(_PATIENCE * stay_s, _PATIENCE_S)

    def drain_s(self, wake_s: float) -> float:
        return DRAIN_WAKES * wake_s

    def turn(self, models: Sequence[Standing], free: int, now: float, promised: str | None) -> Turn:
        claims = [each for each in models if each.is_claim]
        if not claims:
            return Turn()
        claim = first(claims, promised, lambda each: _order(each, now))
        need = 0 if claim.residency is Residency.ALWAYS else claim.num_bytes - free
        if need <= 0:
            return Turn(claim.name)
        is_early = _is_early(claim, now)
        if is_early:
            candidates = [each for each in models if _is_rare(each, claim)]
        else:
            candidates = [each for each in models if _may_go(each, claim, now)]
        victims = cheapest(candidates, need, self.absence_cost)
        if victims is not None:
            return Turn(claim.name, victims)
        waits_s = [each.keeps_until_s for each in models if each.may_leave]
        if is_early:
            waits_s.append(claim.due_s)
        return Turn(next_s=min((each for each in waits_s if each > now), default=math.inf))

    def room_for(self, each: Standing, models: Sequence[Standing], free: int, now: float) -> Room:
        claim = replace(each, due_s=now + each.target_s, is_batch_claim=False)
        candidates = [model for model in models if _may_go(model, claim, now)]
        need = max(0, each.num_bytes - free)
        victims = cheapest(candidates, need, self.absence_cost)
        wait_s = 0.0
        if victims is None:
            able = [model for model in models if model.may_leave]
            victims = cheapest(able, need, self.absence_cost) or ()
            ends_s = [model.keeps_until_s for model in able if model.name in victims]
            wait_s = max([0.0, *(end_s - now for end_s in ends_s)])
        leaving = [model for model in models if model.name in victims]
        drains_s = [self.drain_s(model.wake_s) for model in leaving if model.has_interactive_rows]
        absence_s = each.wake_s + self.keeps_s(each.wake_s, has_token=True)
        cost_s = sum(_delay_s(model, absence_s) for model in leaving)
        return Room(wait_s + max(drains_s, default=0.0), cost_s)

    def ahead(self, models: Sequence[Standing], free: int, room: int, now: float) -> Turn:
        """Wake the one with most arrivals of those that fit; none that is on demand."""
        fitting = [
            each
            for each in models
            if each.state is WeightState.PARKED
            and each.residency is Residency.AUTO
            and each.may_try
            and each.num_bytes <= free
            and each.rate_per_s > 0
            and not each.is_put_away
        ]
        if not fitting:
            return Turn()
        return Turn(max(fitting, key=lambda each: each.rate_per_s).name)


def _delay_s(model: Standing, absence_s: float) -> float:
    """Return the expected delay of the requests of a model that leaves for a while."""
    if model.has_interactive:
        return absence_s + model.wake_s
    return -math.expm1(-model.rate_per_s * absence_s) * (absence_s / 2 + model.wake_s)


def first(
    claims: Sequence[Standing], promised: str | None, order: Callable[[Standing], Any]
) -> Standing:
    """Return the claim that was promised a turn, else the first one by `order`."""
    # A promise holds: what others give up for it would otherwise go to requests that are due
    # earlier, also theirs.
    return next((each for each in claims if each.name == promised), None) or min(claims, key=order)


def _is_early(claim: Standing, now: float) -> bool:
    """True for batch work that has not waited for the ageing time."""
    return claim.is_batch_claim and now < claim.due_s


def _order(claim: Standing, now: float) -> tuple[bool, float]:
    return _is_early(claim, now), claim.due_s


def _is_rare(model: Standing, claim: Standing) -> bool:
    """True where `model` could leave for batch work that is in no hurry."""
    absence_s = model.wake_s + (1.0 + STAY_WAKES) * claim.wake_s
    is_rare = model.is_idle and model.rate_per_s * absence_s < _FEW_ARRIVALS
    return model.may_leave and (is_rare or model.is_put_away)


def _may_go(model: Standing, claim: Standing, now: float) -> bool:
    """True where `model` may leave for `claim` now.

    One without requests may at any time: whoever serves all that waits before it makes room for the
    next serves any load that can be served. Batch work has a least stay against batch work alone.
    """
    if not model.may_leave:
        return False
    is_free = model.is_idle or model.is_leaving or model.is_put_away
    if is_free or now >= model.keeps_until_s:
        return True
    return not (model.has_interactive or model.is_owed or claim.is_batch_claim)


def cheapest(
    candidates: Sequence[Standing], need: int, absence_cost: Callable[[Standing], float]
) -> tuple[str, ...] | None:
    """Return those to park for `need` bytes; None where all are not enough.

    Those that an operator parks first, then idle models, those with batch work alone and those to
    drain, and among these by the cost of absence for each byte (greedy-dual). Then who is not
    needed after all stays, the most costly first.
    """

    def rank(each: Standing) -> tuple[int, float, bool, float, str]:
        effort = 0 if each.is_idle else 2 if each.has_interactive_rows else 1
        effort = -1 if each.is_put_away else effort
        is_auto = each.residency is Residency.AUTO
        density = absence_cost(each) / max(1, each.num_bytes)
        return effort, density, is_auto, each.last_use_s, each.name

    chosen: list[Standing] = []
    found = 0
    for each in sorted(candidates, key=rank):
        if found >= need:
            break
        chosen.append(each)
        found += each.num_bytes
    if found < need:
        return None
    for each in chosen[-2::-1]:  # without the last one it was not enough
        if found - each.num_bytes >= need:
            chosen.remove(each)
            found -= each.num_bytes
    return tuple([each.name for each in chosen])
