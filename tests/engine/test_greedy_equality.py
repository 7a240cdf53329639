"""Greedy output equals Hugging Face generate, token for token, through worker processes."""

from collections.abc import Mapping

import pytest

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

NUM_TOKENS = 20
SHARED = 24
"""Tokens all prompts of the second wave share: at least a block of any model here."""


@pytest.fixture(scope="module")
def oracles(tiny: ModelBuilder) -> Mapping[str, GreedyOracle]:
    return {family: GreedyOracle(tiny(family)) for family in FAMILIES}


def shared_wave(count: int) -> dict[str, list[int]]:
    """`count` prompts of each family that begin alike, families interleaved."""
    by_family = [
        prompts(family, count, 512, shared=SHARED, longest=20, seed=1) for family in FAMILIES
    ]
    return {
        key: own[key]
        for keys in zip(*by_family, strict=True)
        for key, own in zip(keys, by_family, strict=True)
    }


@pytest.mark.parametrize("lane", ["adbs", "temporal", "round-robin", "mixed"])
def test_six_families_with_preemption_and_prefix_hits(
    tiny: ModelBuilder, oracles: Mapping[str, GreedyOracle], lane: str
) -> None:
    """First each family alone under memory pressure, then all at once with shared prefixes."""
    num_columns = 75 if lane == "adbs" else 13  # adbs has a quota for each of the six
    spec = spec_of([tiny(family) for family in FAMILIES], num_columns=num_columns, lane=lane)
    asked: dict[str, list[int]] = {}
    with running(spec) as (unit, sink):

        def ask(wave: dict[str, list[int]], num_tokens: int) -> None:
            submit(unit, wave, greedy(num_tokens))
            asked.update(wave)
            sink.wait_for_ends(len(asked))
            check_lengths(sink, wave, num_tokens)

        for family, (count, num_tokens) in PRESSURE.items():
            ask(prompts(family, count, 512), num_tokens)
        wave = shared_wave(9)
        first = {key: wave.pop(key) for key in list(wave)[: len(FAMILIES)]}
        ask(first, NUM_TOKENS)
        ask(wave, NUM_TOKENS)
        stats = unit.stats()
        check_nothing_leaks(unit)
    for request_id, prompt in asked.items():
        oracles[request_id.split("/")[0]].check(prompt, sink.tokens[request_id])
    num_near_ties = sum(oracle.num_near_ties for oracle in oracles.values())
    assert num_near_ties <= len(asked) // 20
    assert {m.name for m in stats.models if m.num_preemptions > 0} == set(FAMILIES)
    assert {m.name for m in stats.models if m.prefix_hits > 0} == set(FAMILIES)
