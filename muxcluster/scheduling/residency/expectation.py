"""When interactive requests of a model are expected, by what came before. No clock.

Four patterns, the first that applies:

- regular: the last gaps between visits were equal, as of a client that a timer starts;
- a burst has begun: far more came within the last seconds than the hours before say;
- a day: more or fewer came at this time of earlier days; known after the first whole one;
- else as many as planned and, with the hours, as measured.
"""

import math
from collections import deque
from statistics import median

_HOURS_S = 3600.0  # time constant of the rate that holds where nothing else is known
_PLAN_S = 600.0  # the plan counts like so many seconds of measurement
_BURST_S = 10.0  # time constant of the rate of a burst
_BURST_COUNT, _BURST_OVER = 2.0, 4.0  # that it has at least, and how far it exceeds the other rate
_DAY_S, _BIN_S = 86_400.0, 900.0
_NUM_BINS = round(_DAY_S / _BIN_S)
_DAY_KEPT = 0.7  # weight of a day beside the one after it
_NUM_GAPS = 4  # that are equal where requests are regular
_JITTER = 0.1  # by which they may differ from their median
_SHORTEST_PERIOD_S = 10.0
_VISIT = 0.25  # requests that come within this part of the usual gap belong to one visit
_MOST_MISSED = 2  # visits of a regular client, before it is forgotten


class _Fading:
    """A count whose past fades, and the time over which it was taken."""

    def __init__(self, time_constant_s: float) -> None:
        self._time_constant_s = time_constant_s
        self._count = 0.0
        self._at_s = self._start_s = -math.inf

    def add(self, now: float) -> None:
        self._count, self._at_s = self.count(now) + 1.0, now

    def begin(self, now: float) -> None:
        self._at_s = self._start_s = now

    def count(self, now: float) -> float:
        return self._count * math.exp(-(now - self._at_s) / self._time_constant_s)

    def seconds(self, now: float) -> float:
        return -self._time_constant_s * math.expm1(-(now - self._start_s) / self._time_constant_s)


class _Day:
    """Requests and seconds by time of day, relative to the first moment; earlier days fade."""

    def __init__(self, start_s: float) -> None:
        self._start_s = self._known_s = start_s
        self._counts = [0.0] * _NUM_BINS
        self._seconds = [0.0] * _NUM_BINS

    def add(self, now: float) -> None:
        self._advance(now)
        self._counts[self._bin(now)] += 1.0

    def rate_per_s(self, at_s: float, now: float, mean_per_s: float) -> float:
        """Return the rate at that time of day; `mean_per_s` before a whole day has passed.

        The mean counts like a time of one day, so that a single request says little.
        """
        self._advance(now)
        if now - self._start_s < _DAY_S:
            return mean_per_s
        place = self._bin(at_s)
        return (self._counts[place] + mean_per_s * _BIN_S) / (self._seconds[place] + _BIN_S)

    def _bin(self, at_s: float) -> int:
        return int((at_s - self._start_s) % _DAY_S / _BIN_S) % _NUM_BINS

    def _advance(self, now: float) -> None:
        """Count the seconds since the last call; a time of day that begins again fades."""
        if now - self._known_s > 2 * _DAY_S:  # it was not asked for long: older days are forgotten
            self._counts, self._seconds = [0.0] * _NUM_BINS, [0.0] * _NUM_BINS
            self._known_s = now - _DAY_S
        while self._known_s < now:
            index = math.floor((self._known_s - self._start_s) / _BIN_S)
            end_s = self._start_s + (index + 1) * _BIN_S
            if end_s <= self._known_s:  # rounding put it just before the end of its bin
                end_s += _BIN_S
            place = self._bin((self._known_s + min(end_s, now)) / 2)
            if self._known_s <= self._start_s + index * _BIN_S:
                self._counts[place] *= _DAY_KEPT
                self._seconds[place] *= _DAY_KEPT
            self._seconds[place] += min(end_s, now) - self._known_s
            self._known_s = min(end_s, now)


class Expectation:
    """The interactive requests of one model so far, and how many are expected."""

    def __init__(self, rate_per_s: float) -> None:
        """rate_per_s: planned."""
        self._planned_per_s = rate_per_s
        self._day: _Day | None = None  # from the first question or request on
        self._hours, self._burst = _Fading(_HOURS_S), _Fading(_BURST_S)
        self._gaps: deque[float] = deque(maxlen=_NUM_GAPS)
        self._visit_s = -math.inf  # the last visit began

    def arrive(self, now: float) -> None:
        """Count a request."""
        self._begun(now).add(now)
        self._hours.add(now)
        self._burst.add(now)
        gap_s = now - self._visit_s
        if self._gaps and gap_s < _VISIT * median(self._gaps):
            return
        if gap_s < math.inf:
            self._gaps.append(gap_s)
        self._visit_s = now

    def hours_per_s(self, now: float) -> float:
        """Return the rate of the last hours, with the plan's."""
        self._begun(now)
        count = self._planned_per_s * _PLAN_S + self._hours.count(now)
        return count / (_PLAN_S + self._hours.seconds(now))

    def rate_per_s(self, now: float, horizon_s: float = 0.0) -> float:
        """Return the expected rate over the next `horizon_s`, if requests are not regular."""
        day, hours_per_s = self._begun(now), self.hours_per_s(now)
        count = self._burst.count(now)
        burst_per_s = count / max(_BURST_S / 2, self._burst.seconds(now))
        if count >= _BURST_COUNT and burst_per_s > _BURST_OVER * hours_per_s:
            return burst_per_s
        return day.rate_per_s(now + horizon_s / 2, now, hours_per_s)

    def expected(self, now: float, horizon_s: float) -> float:
        """Return how many requests are expected in the next `horizon_s`."""
        span = self.next_visit_s(now)
        if span is not None:
            return 1.0 if span[0] <= now + horizon_s else 0.0
        return self.rate_per_s(now, horizon_s) * horizon_s

    def next_visit_s(self, now: float) -> tuple[float, float] | None:
        """Return from when to when the next visit is expected; None where they are not regular."""
        if len(self._gaps) < _NUM_GAPS:
            return None
        period_s = median(self._gaps)
        jitter_s = _JITTER * period_s
        if period_s < _SHORTEST_PERIOD_S or any(
            abs(gap_s - period_s) > jitter_s for gap_s in self._gaps
        ):
            return None
        for number in range(1, _MOST_MISSED + 2):
            due_s = self._visit_s + number * period_s
            if now <= due_s + jitter_s:
                return due_s - jitter_s, due_s + jitter_s
        return None

    def _begun(self, now: float) -> _Day:
        if self._day is None:
            self._day = _Day(now)
            self._hours.begin(now)
            self._burst.begin(now)
        return self._day
