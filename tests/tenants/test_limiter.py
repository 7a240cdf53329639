"""Limits of keys against a plain record of all that was admitted."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from muxcluster.tenants.keys import KeyLimits, TenantKey
from muxcluster.tenants.limiter import DAY_S, MINUTE_S, Instant, Limiter
from muxcluster.tenants.messages import Ask

REQUESTS, TOKENS, A_DAY, OPEN = 4, 100, 300, 3
KEYS = (
    TenantKey("a", "0" * 64, limits=KeyLimits(REQUESTS, TOKENS, A_DAY, OPEN)),
    TenantKey("b", "1" * 64, limits=KeyLimits(tokens_per_minute=TOKENS)),
    TenantKey("free", "2" * 64),
)
LIMITS = {key.name: key.limits for key in KEYS}


@dataclass
class Admitted:
    """A request that was let through."""

    key: str
    at: Instant
    reserved: int
    used: int | None = None

    @property
    def tokens(self) -> int:
        return self.reserved if self.used is None else self.used


@dataclass
class Record:
    """All that was admitted, counted anew for every question."""

    all: list[Admitted] = field(default_factory=list)

    def minute(self, key: str, now: Instant) -> list[Admitted]:
        begin = now.monotonic_s - MINUTE_S
        return [a for a in self.all if a.key == key and begin < a.at.monotonic_s]

    def would_pass(self, key: str, tokens: int, now: Instant) -> bool:
        limits = LIMITS[key]
        mine = [a for a in self.all if a.key == key]
        last = self.minute(key, now)
        day = [a for a in mine if a.at.day == now.day]
        checks = (
            (limits.concurrent_requests, sum(a.used is None for a in mine) + 1),
            (limits.requests_per_minute, len(last) + 1),
            (limits.tokens_per_minute, sum(a.tokens for a in last) + tokens),
            (limits.tokens_per_day, sum(a.tokens for a in day) + tokens),
        )
        return all(limit is None or wanted <= limit for limit, wanted in checks)


class Limits(RuleBasedStateMachine):
    """Requests begin and end, time goes on, and days end."""

    open_calls = Bundle("open_calls")

    def __init__(self) -> None:
        super().__init__()
        self.limiter = Limiter(KEYS)
        self.record = Record()
        self.now = Instant(5.0, 20_000 * DAY_S - 100.0)
        self.num_calls = 0

    @rule(seconds=st.sampled_from([0.0, 0.5, 7.0, 30.0, 59.5, 60.0, 61.0, 3600.0]))
    def wait(self, seconds: float) -> None:
        self.now = Instant(self.now.monotonic_s + seconds, self.now.unix_s + seconds)

    @rule(
        target=open_calls,
        key=st.sampled_from(sorted(LIMITS)),
        prompt=st.integers(1, 40),
        output=st.integers(0, 70),
    )
    def begin(self, key: str, prompt: int, output: int):
        self.num_calls += 1
        call_id = f"call-{self.num_calls}"
        tokens = prompt + output
        expected = self.record.would_pass(key, tokens, self.now)
        grant = self.limiter.reserve(Ask(call_id, key, "m", prompt, tokens), "here", self.now)
        assert grant.is_granted == expected, grant
        if not grant.is_granted:
            assert grant.retry_after_s > 0
            return multiple()
        admitted = Admitted(key, self.now, tokens)
        self.record.all.append(admitted)
        self.check_left(key, grant)
        return call_id, admitted

    def check_left(self, key: str, grant) -> None:
        limits, last = LIMITS[key], self.record.minute(key, self.now)
        assert (grant.requests is None) == (limits.requests_per_minute is None)
        if grant.requests is not None:
            assert grant.requests.limit == limits.requests_per_minute
            assert grant.requests.remaining == limits.requests_per_minute - len(last)
            assert 0 < grant.requests.reset_s <= MINUTE_S
        if limits.tokens_per_minute is None:
            assert grant.tokens is None
            return
        left = limits.tokens_per_minute - sum(a.tokens for a in last)
        if limits.tokens_per_day is not None:
            mine = [a for a in self.record.all if a.key == key and a.at.day == self.now.day]
            left = min(left, limits.tokens_per_day - sum(a.tokens for a in mine))
        assert grant.tokens is not None and grant.tokens.remaining == left

    @rule(call=consumes(open_calls), part=st.floats(0, 1))
    def end(self, call: tuple[str, Admitted], part: float) -> None:
        call_id, admitted = call
        admitted.used = int(admitted.reserved * part)
        found = self.limiter.settle(call_id, admitted.used)
        assert found is not None and found.ask.key == admitted.key
        self.limiter.spend(admitted.key, found.day, admitted.used)
        assert self.limiter.settle(call_id, 10**6) is None  # it ends once

    @rule()
    def replace_keys(self) -> None:
        self.limiter.replace_keys(KEYS)

    @invariant()
    def holds(self) -> None:
        self.limiter.check()
        for key in LIMITS:
            is_open = [a for a in self.record.all if a.key == key and a.used is None]
            assert self.limiter.num_open(key) == len(is_open)

    def teardown(self) -> None:
        """Over the whole run no window had more than the limits, and nothing leaks."""
        for first in self.record.all:
            limits, begin = LIMITS[first.key], first.at.monotonic_s
            window = [
                a
                for a in self.record.all
                if a.key == first.key and begin <= a.at.monotonic_s < begin + MINUTE_S
            ]
            if limits.requests_per_minute is not None:
                assert len(window) <= limits.requests_per_minute
            if limits.tokens_per_minute is not None:
                assert sum(a.tokens for a in window) <= limits.tokens_per_minute


TestLimits = Limits.TestCase


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(1, 99)), min_size=1, max_size=30))
def test_after_retry_after_there_is_room(waits: list[tuple[float, int]]) -> None:
    limiter = Limiter(KEYS)
    now_s = 0.0
    for i, (wait_s, tokens) in enumerate(waits):
        now_s += wait_s
        grant = limiter.reserve(Ask(f"{i}", "b", "m", 1, tokens), "here", Instant(now_s, now_s))
        if not grant.is_granted:
            # the sums of floats may be short of the time by a rounding
            now_s += grant.retry_after_s + 1e-6
            again = Ask(f"{i}-again", "b", "m", 1, tokens)
            assert limiter.reserve(again, "here", Instant(now_s, now_s)).is_granted


def test_what_can_never_fit_is_told() -> None:
    limiter = Limiter(KEYS)
    grant = limiter.reserve(Ask("x", "b", "m", 1, TOKENS + 1), "here", Instant(0.0, 0.0))
    assert grant.can_never_fit and not grant.is_granted
    grant = limiter.reserve(Ask("y", "b", "m", 1, TOKENS), "here", Instant(0.0, 0.0))
    assert grant.is_granted and not grant.can_never_fit


def test_other_limits_apply_at_once_and_what_was_used_stays() -> None:
    limiter, now = Limiter(KEYS), Instant(0.0, 0.0)
    assert limiter.reserve(Ask("x", "b", "m", 1, 60), "here", now).is_granted
    limiter.replace_keys([TenantKey("b", "1" * 64, limits=KeyLimits(tokens_per_minute=70))])
    assert not limiter.reserve(Ask("y", "b", "m", 1, 11), "here", now).is_granted
    assert limiter.reserve(Ask("z", "b", "m", 1, 10), "here", now).is_granted
