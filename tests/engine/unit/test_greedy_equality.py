"""Greedy output equals Hugging Face generate, token for token, through worker processes."""

from collections.abc import Mapping

import pytest

from tests.amounts import slow
from tests.blocks import scaled
from tests.engine.conftest import ModelBuilder
from tests.engine.units import (
    check_lengths,
    check_nothing_leaks,
    greedy,
    prompts,
    running,
    spec_of,
    submit,
)
from tests.oracles import GreedyOracle

pytestmark = pytest.mark.usefixtures("fast_children")

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "opt", "mixtral")
PRESSURE = {
    "llama": (8, 24),
    "mistral": (14, 64),
    "qwen2": (8, 48),
    "qwen3": (8, 24),
    "opt": (8, 24),
    "mixtral": (8, 48),
}
"""Concurrent requests and output tokens that no pool here can hold; light families need more."""

NUM_TOKENS = 12
SHARED = scaled(24, 8)
"""Tokens some prompts share: at least a block of any model here."""


@pytest.fixture(scope="module")
def oracles(tiny: ModelBuilder) -> Mapping[str, GreedyOracle]:
    return {family: GreedyOracle(tiny(family)) for family in FAMILIES}


@pytest.mark.timeout(scaled(300, 8))  # Hugging Face generates as many times more tokens
@pytest.mark.parametrize("lane", ["adbs", *slow("temporal", "round-robin", "mixed")])
def test_six_families_with_preemption_and_prefix_hits(
    tiny: ModelBuilder, oracles: Mapping[str, GreedyOracle], lane: str
) -> None:
    """Each family under memory pressure, then with a shared prefix; at last all at once."""
    num_columns = 75 if lane == "adbs" else 13  # adbs has a quota for each of the six
    spec = spec_of([tiny(family) for family in FAMILIES], num_columns=num_columns, lane=lane)
    asked: dict[str, list[int]] = {}
    for oracle in oracles.values():
        oracle.num_near_ties = 0
    with running(spec) as (unit, sink):

        def ask(wave: dict[str, list[int]], num_tokens: int) -> None:
            submit(unit, wave, greedy(num_tokens))
            asked.update(wave)
            sink.wait_for_ends(len(asked))
            check_lengths(sink, wave, num_tokens)

        for family, (count, num_tokens) in PRESSURE.items():
            longest = scaled(50, 8)
            ask(prompts(family, count, 512, longest=longest), scaled(num_tokens, 8))
            sharing = prompts(family, 3, 512, shared=SHARED, longest=20, seed=1)
            ask(dict([sharing.popitem()]), NUM_TOKENS)  # its prefix is cached when the others come
            ask(sharing, NUM_TOKENS)
        everybody: dict[str, list[int]] = {}
        for family in FAMILIES:
            everybody |= prompts(family, 3, 512, seed=2)
        ask(everybody, NUM_TOKENS)
        stats = unit.stats()
        check_nothing_leaks(unit)
    for request_id, prompt in asked.items():
        oracles[request_id.split("/")[0]].check(prompt, sink.tokens[request_id])
    num_near_ties = sum(oracle.num_near_ties for oracle in oracles.values())
    assert num_near_ties <= len(asked) // 20
    preempted = {m.name for m in stats.models if m.num_preemptions > 0}
    # Windows of mistral give back what it would have to take from others.
    assert preempted >= set(FAMILIES) - {"mistral"}
    assert {m.name for m in stats.models if m.prefix_hits > 0} == set(FAMILIES)
