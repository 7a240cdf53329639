"""The router: least predicted wait, affinity while it pays, bounded memory."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.router.routing import (
    CHUNK_TOKENS,
    MAX_CHUNKS,
    SLACK_S,
    Candidate,
    PrefixMemory,
    choose,
)

TOKEN_S = 0.001


def request(tokens: Sequence[int], salt: str = "") -> Request:
    prompt = np.asarray(tokens, dtype=np.int32)
    return Request("r", "m", prompt, SamplingParams(), cache_salt=salt)


@dataclass(frozen=True)
class Unit:
    """A candidate without a memory of its own."""

    unit_id: str
    wait_s: float = 0.0
    num_requests: int = 0
    token_s: float = TOKEN_S


class Router:
    """Units' memories from one choice to the next."""

    def __init__(self, max_hashes: int = 1000) -> None:
        self.memories: dict[str, PrefixMemory] = {}
        self._max_hashes = max_hashes

    def choose(self, asked: Request, units: Sequence[Unit]) -> str:
        for unit in units:
            self.memories.setdefault(unit.unit_id, PrefixMemory(self._max_hashes))
        candidates = [
            Candidate(u.unit_id, u.wait_s, u.token_s, u.num_requests, self.memories[u.unit_id])
            for u in units
        ]
        return choose(asked, candidates).unit_id


def prompt(seed: int, num_chunks: int) -> list[int]:
    return random.Random(seed).choices(range(1000), k=num_chunks * CHUNK_TOKENS)


waits = st.floats(0.0, 10.0)
units = st.lists(
    st.builds(Unit, st.sampled_from("abcdef"), waits, st.integers(0, 50), st.floats(1e-6, 0.01)),
    min_size=1,
    max_size=6,
    unique_by=lambda candidate: candidate.unit_id,
)
prompts = st.tuples(st.integers(0, 3), st.integers(0, 5)).map(lambda pair: prompt(*pair))


@given(st.lists(st.tuples(prompts, units), max_size=20))
def test_nobody_waits_longer_than_the_best_unit_would_take_with_nothing_cached(
    history: list[tuple[list[int], list[Unit]]],
) -> None:
    """What is cached can only help: the bound holds whatever was sent before."""
    router = Router(max_hashes=8)
    for tokens, candidates in history:
        chosen_id = router.choose(request(tokens), candidates)
        (chosen,) = [c for c in candidates if c.unit_id == chosen_id]
        uncached_s = min(c.wait_s + len(tokens) * c.token_s for c in candidates)
        assert chosen.wait_s <= uncached_s + SLACK_S
        for candidate in candidates:
            assert len(router.memories[candidate.unit_id]) <= 8


@given(units)
def test_an_unknown_prompt_takes_the_least_wait_then_the_emptiest(
    candidates: list[Unit],
) -> None:
    tokens = prompt(0, 2)
    chosen = Router().choose(request(tokens), candidates)
    cost = {c.unit_id: c.wait_s + len(tokens) * c.token_s for c in candidates}
    near = [c for c in candidates if cost[c.unit_id] <= min(cost.values()) + SLACK_S]
    least = min(c.num_requests for c in near)
    assert next(c for c in near if c.unit_id == chosen).num_requests == least


def test_a_shared_beginning_goes_where_it_went() -> None:
    router, shared = Router(), prompt(1, 4)
    first = router.choose(request(shared + prompt(2, 1)), [Unit("a", num_requests=1), Unit("b")])
    assert first == "b"
    for seed in range(3, 9):
        again = request(shared + prompt(seed, 1))
        assert router.choose(again, [Unit("a"), Unit("b", num_requests=9)]) == "b"
    other = request(prompt(9, 5))
    assert router.choose(other, [Unit("a"), Unit("b", num_requests=9)]) == "a"


def test_affinity_gives_way_where_waiting_costs_more_than_prefilling() -> None:
    saved_s = 4 * CHUNK_TOKENS * TOKEN_S
    for extra_s, expected in ((-1.5 * SLACK_S, "a"), (1.5 * SLACK_S, "b")):
        router, shared = Router(), request(prompt(1, 4))
        assert router.choose(shared, [Unit("a"), Unit("b", num_requests=1)]) == "a"
        busy = [Unit("a", wait_s=saved_s + extra_s), Unit("b")]
        assert router.choose(shared, busy) == expected


def test_only_what_may_be_shared_counts_as_the_same() -> None:
    """Another tenant, another model, and a request without caching find nothing."""
    router, tokens = Router(), prompt(1, 4)
    assert router.choose(request(tokens, "x"), [Unit("a", num_requests=1), Unit("b")]) == "b"
    crowded = [Unit("a"), Unit("b", num_requests=1)]
    assert router.choose(request(tokens, "y"), crowded) == "a"
    assert router.choose(request(tokens, "x"), crowded) == "b"
    del router.memories["b"]
    assert router.choose(request(tokens, "x"), crowded) == "a"


def test_a_long_prompt_is_hashed_to_a_limit_only() -> None:
    router = Router()
    both = [Unit("a"), Unit("b", num_requests=1)]
    router.choose(request(prompt(1, 3 * MAX_CHUNKS)), both)
    assert len(router.memories["a"]) == MAX_CHUNKS


def test_beginnings_outlive_what_follows_them() -> None:
    router, shared = Router(max_hashes=6), prompt(1, 3)
    both = [Unit("a"), Unit("b", num_requests=1)]
    for seed in range(2, 20):
        assert router.choose(request(shared + prompt(seed, 2)), both) == "a"
    assert len(router.memories["a"]) == 6
    assert router.choose(request(shared), [Unit("a", num_requests=5), Unit("b")]) == "a"
