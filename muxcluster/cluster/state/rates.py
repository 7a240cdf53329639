"""Decision whether measured rates have differed from the planned ones for long enough."""

from collections.abc import Mapping
from dataclasses import dataclass, field

FACTOR = 1.5  # a rate is off if it is this many times the planned one, or lower by this factor
LEAST_PER_S = 0.05  # Differences below this many requests/s are noise
# An unused model is planned with this share of its configured rate, so that it stays ready.
FLOOR = 0.1


@dataclass(slots=True)
class RateWatch:
    """Times since when rates are off."""

    period_s: float  # least time that rates must be off, and between two replans
    _off_since_s: float | None = None
    _answered_s: float = field(default=float("-inf"))

    def look(
        self, planned: Mapping[str, float], measured: Mapping[str, float], now_s: float
    ) -> bool:
        """Return whether to replan for `measured` instead of `planned` now; requests/s by model."""
        if not any(is_off(rate, measured.get(name, 0.0)) for name, rate in planned.items()):
            self._off_since_s = None
            return False
        if self._off_since_s is None:
            self._off_since_s = now_s
        is_due = now_s - max(self._off_since_s, self._answered_s) >= self.period_s
        if is_due:
            self._answered_s, self._off_since_s = now_s, None
        return is_due


def is_off(planned: float, measured: float) -> bool:
    """Return whether a plan for one rate is wrong for the other."""
    if abs(planned - measured) < LEAST_PER_S:
        return False
    return measured > planned * FACTOR or planned > measured * FACTOR


def to_plan_for(configured: float, measured: float) -> float:
    """Return the rate (requests/s) to plan with."""
    return max(measured, configured * FLOOR)
