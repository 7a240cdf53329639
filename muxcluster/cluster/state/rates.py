"""Decision whether measured rates, or backlogs of batch work, have differed from the planned ones
for long enough."""

from collections.abc import Mapping
from dataclasses import dataclass, field

FACTOR = 1.5  # a rate is off if it is this many times the planned one, or lower by this factor
LEAST_PER_S = 0.05  # Differences below this many requests/s are noise
LEAST_TOKENS_PER_S = 20.0  # the same of batch work: 1.7 million tokens a day
_FORGOTTEN_S = 120.0  # batch work counts as gone if nobody has told of it for so long
# An unused model is planned with this share of its configured rate, so that it stays ready.
FLOOR = 0.1


@dataclass(slots=True)
class RateWatch:
    """Times since when rates are off."""

    period_s: float  # least time that rates must be off, and between two replans
    least: float = LEAST_PER_S  # difference that counts
    _off_since_s: float | None = None
    _answered_s: float = field(default=float("-inf"))

    def look(
        self, planned: Mapping[str, float], measured: Mapping[str, float], now_s: float
    ) -> bool:
        """Return whether to replan for `measured` instead of `planned` now; requests/s by model."""
        names = planned.keys() | measured.keys()
        pairs = ((planned.get(name, 0.0), measured.get(name, 0.0)) for name in names)
        if not any(is_off(*pair, self.least) for pair in pairs):
            self._off_since_s = None
            return False
        if self._off_since_s is None:
            self._off_since_s = now_s
        is_due = now_s - max(self._off_since_s, self._answered_s) >= self.period_s
        if is_due:
            self._answered_s, self._off_since_s = now_s, None
        return is_due


@dataclass(slots=True)
class MeasuredBacklogs:
    """Tokens/s of batch work by model, as last told."""

    _tokens_per_s: Mapping[str, float] = field(default_factory=dict)
    _told_s: float = field(default=float("-inf"))

    def note(self, tokens_per_s: Mapping[str, float], now_s: float) -> None:
        self._tokens_per_s, self._told_s = dict(tokens_per_s), now_s

    def now(self, now_s: float) -> Mapping[str, float]:
        """Return what was told last, nothing if that is long ago."""
        return self._tokens_per_s if now_s - self._told_s < _FORGOTTEN_S else {}


def is_off(planned: float, measured: float, least: float = LEAST_PER_S) -> bool:
    """Return whether a plan for one rate is wrong for the other."""
    if abs(planned - measured) < least:
        return False
    return measured > planned * FACTOR or planned > measured * FACTOR


def to_plan_for(configured: float, measured: float) -> float:
    """Return the rate (requests/s) to plan with."""
    return max(measured, configured * FLOOR)
