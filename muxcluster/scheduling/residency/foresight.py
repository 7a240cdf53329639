"""A policy that wakes models ahead of requests which past ones let expect.

As `ByDeadline`, but that absence costs by expected requests instead of the rate of late, and that
memory without use goes to models that are likely to be asked for soon. Requests that wait come
first: nothing is woken ahead while one does, no model with open requests leaves for it, and models
that were woken so and not asked for since have at most `AHEAD_SHARE` of the memory, or
there is only one.
"""

import math
from collections.abc import Sequence

from muxcluster.core.residency import STAY_WAKES, WeightState
from muxcluster.scheduling.residency.policy import ByDeadline, Standing, Turn, cheapest

AHEAD_SHARE = 0.5  # of the memory for weights
_LIKELY = 0.5  # probability of a request for which a model is woken
_SURER = 2.0  # times the delay that is saved, beside the delay that those who leave may cost
_SHORTEST_S = 10.0
_LOOK_S = 60.0  # rates change with the time of day: when to look again


def horizon_s(wake_s: float) -> float:
    """Return for how long ahead requests of a model count: until it is woken and has stayed."""
    return max(_SHORTEST_S, (1.0 + STAY_WAKES) * wake_s)


def delay(each: Standing) -> float:
    """Expected delay of the next request, in targets, if the model is absent."""
    return -math.expm1(-each.expected) * each.wake_s / each.target_s


class Foreseeing(ByDeadline):
    """Wakes models ahead of the requests that are expected for them."""

    foresees = True

    def absence_cost(self, each: Standing) -> float:
        return each.expected * each.wake_s / each.target_s

    def ahead(self, models: Sequence[Standing], free: int, room: int, now: float) -> Turn:
        taken = sum(each.num_bytes for each in models if each.is_ahead)
        parked = [
            each
            for each in models
            if each.state is WeightState.PARKED and each.may_try and not each.is_put_away
        ]
        for each in sorted(parked, key=lambda each: -delay(each)):
            is_most = taken > 0 and taken + each.num_bytes > AHEAD_SHARE * room
            if is_most or -math.expm1(-each.expected) < _LIKELY:
                continue
            victims = self._giving_way(each, models, each.num_bytes - free, now)
            if victims is not None:
                return Turn(each.name, victims)
        found = super().ahead(models, free, room, now)
        return found._replace(next_s=self._next_s(parked, now))

    def _giving_way(
        self, each: Standing, models: Sequence[Standing], need: int, now: float
    ) -> tuple[str, ...] | None:
        """Return idle models to park for one that is expected sooner; None: it does not pay."""
        if need <= 0:
            return ()
        idle = [m for m in models if m.may_leave and m.is_idle and now >= m.keeps_until_s]
        victims = cheapest(idle, need, self.absence_cost)
        if victims is None:
            return None
        cost = sum(delay(victim) for victim in idle if victim.name in victims)
        return victims if delay(each) > _SURER * cost else None

    def _next_s(self, parked: Sequence[Standing], now: float) -> float:
        """Return when time alone may change what is expected enough."""
        times_s = [each.visit_s - horizon_s(each.wake_s) for each in parked]
        times_s += [now + _LOOK_S for each in parked if each.rate_per_s > 0]
        return min((each for each in times_s if each > now), default=math.inf)
