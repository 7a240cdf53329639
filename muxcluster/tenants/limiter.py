"""The limits of keys: a state machine without a clock.

A request reserves its prompt tokens and its most output tokens when it is admitted, and is settled
with those it used at its end. Minutes are sliding windows over the times of admission, days are
those of UTC. Refused requests count nowhere.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from muxcluster.tenants.keys import KeyLimits, TenantKey
from muxcluster.tenants.messages import Ask, Grant, LimitState
from muxcluster.tenants.window import Admission, SlidingWindow

MINUTE_S = 60.0
DAY_S = 86_400
BUSY_RETRY_S = 1.0  # when one of a key's open requests ends is not known
_UNLIMITED = KeyLimits()


@dataclass(frozen=True, slots=True)
class Instant:
    """A moment on two clocks."""

    monotonic_s: float  # never falls
    unix_s: float

    @property
    def day(self) -> int:
        """The day in UTC, counted from 1970."""
        return int(self.unix_s // DAY_S)

    @property
    def left_of_day_s(self) -> float:
        return DAY_S - self.unix_s % DAY_S


@dataclass(frozen=True, slots=True, eq=False)
class OpenRequest:
    """A request that was admitted and has not ended."""

    ask: Ask
    caller: str
    day: int  # on which it was admitted
    tokens: Admission  # its part of the key's tokens of a minute


def _minute() -> SlidingWindow:
    return SlidingWindow(MINUTE_S)


@dataclass(slots=True, eq=False)
class _Use:
    """What one key uses."""

    requests: SlidingWindow = field(default_factory=_minute)
    tokens: SlidingWindow = field(default_factory=_minute)
    day: int = 0
    day_spent: int = 0  # tokens of requests that were written to the ledger as of `day`
    day_reserved: int = 0  # tokens of open requests that were admitted on `day`
    num_open: int = 0

    @property
    def day_tokens(self) -> int:
        return self.day_spent + self.day_reserved

    def turn_to(self, day: int) -> None:
        """Begin a new day."""
        if day > self.day:
            self.day, self.day_spent, self.day_reserved = day, 0, 0


class Limiter:
    """Admits requests of keys within their limits. One thread."""

    def __init__(self, keys: Iterable[TenantKey] = ()) -> None:
        self._limits: Mapping[str, KeyLimits] = {}
        self._uses: dict[str, _Use] = {}
        self._open: dict[str, OpenRequest] = {}
        self.replace_keys(keys)

    def replace_keys(self, keys: Iterable[TenantKey]) -> None:
        """Apply other limits from now on; what was used stays counted."""
        self._limits = {key.name: key.limits for key in keys}

    def reserve(self, ask: Ask, caller: str, now: Instant) -> Grant:
        """Admit a request, or say which limit it would pass. Keys without limits admit all."""
        limits = self._limits.get(ask.key, _UNLIMITED)
        use = self._uses.setdefault(ask.key, _Use())
        use.turn_to(now.day)
        refused = _refusal(limits, use, ask, now)
        if refused is None:
            self._admit(use, ask, caller, now)
        grant = refused or Grant()
        return Grant(
            grant.refusal,
            grant.retry_after_s,
            grant.can_never_fit,
            requests=_requests_left(limits, use, now),
            tokens=_tokens_left(limits, use, now),
        )

    def _admit(self, use: _Use, ask: Ask, caller: str, now: Instant) -> None:
        assert ask.call_id not in self._open, "a request asks once"
        use.requests.admit(1, now.monotonic_s)
        tokens = use.tokens.admit(ask.num_tokens, now.monotonic_s)
        # use.day, not now.day: a clock that was set back does not begin the day before again
        use.day_reserved += ask.num_tokens
        use.num_open += 1
        self._open[ask.call_id] = OpenRequest(ask, caller, use.day, tokens)

    def settle(self, call_id: str, num_tokens: int) -> OpenRequest | None:
        """End a request that used `num_tokens`; None if no such one is open.

        The day's tokens are counted by `spend`.
        """
        found = self._open.pop(call_id, None)
        if found is not None:
            use = self._uses[found.ask.key]
            use.num_open -= 1
            use.tokens.correct(found.tokens, num_tokens)
            if use.day == found.day:
                use.day_reserved -= found.ask.num_tokens
        return found

    def spend(self, key: str, day: int, num_tokens: int) -> None:
        """Count tokens that a key used on a day, as the ledger has them."""
        use = self._uses.setdefault(key, _Use())
        use.turn_to(day)
        if use.day == day:
            use.day_spent += num_tokens

    def open_of(self, caller: str) -> list[OpenRequest]:
        """Return the open requests of an ingress."""
        return [each for each in self._open.values() if each.caller == caller]

    def num_open(self, key: str) -> int:
        """Return how many requests of a key are open."""
        return self._uses[key].num_open if key in self._uses else 0

    def check(self) -> None:
        """Raise AssertionError unless counts and sums agree with the open requests."""
        for name, use in self._uses.items():
            mine = [each for each in self._open.values() if each.ask.key == name]
            assert use.num_open == len(mine)
            today = [each.ask.num_tokens for each in mine if each.day == use.day]
            assert use.day_reserved == sum(today)
            assert use.day_spent >= 0
            use.requests.check()
            use.tokens.check()


def _refusal(limits: KeyLimits, use: _Use, ask: Ask, now: Instant) -> Grant | None:
    """Return the first limit that a request would pass, None if it passes none."""
    now_s = now.monotonic_s
    most = limits.concurrent_requests
    if most is not None and use.num_open >= most:
        return Grant(f"{most} requests open at once", BUSY_RETRY_S)
    most = limits.requests_per_minute
    if most is not None and (over := use.requests.total(now_s) + 1 - most) > 0:
        return Grant(f"{most} requests a minute", use.requests.wait_s(over, now_s))
    most = limits.tokens_per_minute
    if most is not None and (over := use.tokens.total(now_s) + ask.num_tokens - most) > 0:
        words = f"{most} tokens a minute, and the request may take {ask.num_tokens}"
        if ask.num_tokens > most:
            return Grant(words, MINUTE_S, can_never_fit=True)
        return Grant(words, use.tokens.wait_s(over, now_s))
    most = limits.tokens_per_day
    if most is not None and use.day_tokens + ask.num_tokens > most:
        words = f"{most} tokens a day, and the request may take {ask.num_tokens}"
        return Grant(words, now.left_of_day_s, ask.num_tokens > most)
    return None


def _requests_left(limits: KeyLimits, use: _Use, now: Instant) -> LimitState | None:
    if limits.requests_per_minute is None:
        return None
    return _minute_left(limits.requests_per_minute, use.requests, now)


def _tokens_left(limits: KeyLimits, use: _Use, now: Instant) -> LimitState | None:
    """Return the state of the minute's or the day's tokens, of which less is left."""
    found = []
    if limits.tokens_per_minute is not None:
        found.append(_minute_left(limits.tokens_per_minute, use.tokens, now))
    most = limits.tokens_per_day
    if most is not None:
        reset_s = now.left_of_day_s if use.day_tokens else 0.0
        found.append(LimitState(most, max(0, most - use.day_tokens), reset_s))
    return min(found, key=lambda state: state.remaining, default=None)


def _minute_left(limit: int, window: SlidingWindow, now: Instant) -> LimitState:
    remaining = max(0, limit - window.total(now.monotonic_s))
    return LimitState(limit, remaining, window.reset_s(now.monotonic_s))
