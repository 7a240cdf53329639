"""What a running batch job will hold: peaks against brute force, and a clock told by results."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.offline.feed.held_memory import TokenClock, peak_tokens

REQUESTS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=12)


@given(REQUESTS)
def test_the_peak_of_known_lengths_is_that_of_every_step(requests: list[tuple[int, int]]) -> None:
    held, left = np.array(requests, dtype=np.float64).T
    by_step = [held[left >= step].sum() + step * (left >= step).sum() for step in range(51)]
    assert peak_tokens(held, left, np.ones(len(held), dtype=np.bool_)) == max(by_step)


def test_many_requests_of_unknown_length_peak_as_their_mean_does() -> None:
    """n exp(-t / m) requests of t tokens at time t: most at t = m, nearly in quarters."""
    count = 4000
    unsure = np.zeros(count, dtype=np.bool_)
    peak = peak_tokens(np.zeros(count), np.full(count, 100.0), unsure)
    assert peak == pytest.approx(count * 100 / np.e, rel=0.45)
    assert peak < peak_tokens(np.zeros(count), np.full(count, 100.0), ~unsure)
    assert peak_tokens(np.zeros(0), np.zeros(0), unsure[:0]) == 0


def test_the_clock_goes_as_fast_as_requests_lately_did() -> None:
    clock = TokenClock()
    clock.advance(10.0)
    assert clock.tokens == 0
    clock.ended(8, 9.0)  # too short to tell
    clock.advance(20.0)
    assert clock.tokens == 0
    clock.ended(100, 15.0)
    clock.advance(22.0)
    assert clock.tokens == pytest.approx(40.0)
    for now in range(23, 80):
        clock.ended(40, clock.now - 1.0)
        clock.advance(float(now))
    before = clock.tokens
    clock.advance(80.0)
    assert clock.tokens - before == pytest.approx(40.0, rel=0.05)
