"""Greedy output equals Hugging Face generate, token for token, through worker processes."""

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
NUM_TOKENS = 24
SHARED = 40
"""Tokens all prompts of a wave share: more than one block of any tiny model."""


@pytest.mark.parametrize("lane", ["adbs", "temporal", "round-robin", "mixed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_ragged_requests_preemption_and_prefix_hits(
    tiny: ModelBuilder, family: str, lane: str
) -> None:
    directory = tiny(family)
    spec = spec_of([directory], num_columns=24, lane=lane)
    vocab = spec.models[0].vocab_size
    ragged = prompts(family, 8, vocab)
    sharing = prompts(family, 9, vocab, shared=SHARED, seed=1)
    first = dict([sharing.popitem()])
    with running(spec) as (unit, sink):
        submit(unit, ragged, greedy(NUM_TOKENS))
        sink.wait_for_ends(8)
        submit(unit, first, greedy(NUM_TOKENS))
        sink.wait_for_ends(9)
        submit(unit, sharing, greedy(NUM_TOKENS))
        sink.wait_for_ends(17)
        (stats,) = unit.stats().models
        check_nothing_leaks(unit)
    assert stats.num_preemptions > 0
    assert stats.prefix_hits > 0
    oracle = GreedyOracle(directory)
    asked = {**ragged, **first, **sharing}
    check_lengths(sink, asked, NUM_TOKENS)
    for request_id, prompt in asked.items():
        oracle.check(prompt, sink.tokens[request_id])
    assert oracle.num_near_ties <= len(asked) // 4
