"""Interactive and batch requests read each other's cached prefixes: Hugging Face's tokens."""

from dataclasses import replace

import pytest

from muxcluster.core.request import ServiceClass
from tests.blocks import scaled
from tests.engine.conftest import ModelBuilder
from tests.engine.stepping import SteppedUnit
from tests.engine.units import greedy, prompts, request_of, spec_of
from tests.oracles import GreedyOracle

SHARED, LONGEST_OWN = scaled(136, 8), scaled(20, 8)
CLASSES = (ServiceClass.INTERACTIVE, ServiceClass.BATCH)
NUM_TOKENS = 9


def hits_of(tiny: ModelBuilder, family: str, first: ServiceClass) -> tuple[int, int]:
    """Serve a request of one class, then three of the other with the same prefix at once.

    Returns the tokens that were found in the cache, and those of the prefix that can be.
    """
    directory = tiny(family)
    found = spec_of([directory], lane="mixed", partition="none", num_columns=400)
    policy = replace(found.scheduler, packing="hybrid", token_budget=scaled(512, 8))
    unit = SteppedUnit(replace(found, scheduler=policy, num_host_blocks=100))
    asked = prompts(family, 4, 512, shared=SHARED, longest=LONGEST_OWN)
    other = CLASSES[1 - CLASSES.index(first)]
    requests = [
        replace(request_of(name, prompt, greedy(NUM_TOKENS)), service_class=other if i else first)
        for i, (name, prompt) in enumerate(asked.items())
    ]
    oracle = GreedyOracle(directory)
    tokens = {**unit.run(requests[:1]), **unit.run(requests[1:])}
    for name, prompt in asked.items():
        assert len(tokens[name]) == NUM_TOKENS
        oracle.check(prompt, tokens[name])
    assert oracle.num_near_ties <= 1
    block_tokens = unit.runner.arena.model(family).block_tokens
    hits = unit.scheduler.stats(0.0, "u").models[0].prefix_hits
    return hits, SHARED // block_tokens * block_tokens


@pytest.mark.parametrize("first", CLASSES)
@pytest.mark.parametrize("family", ["llama", "qwen2", "opt", "mixtral"])
def test_a_prefix_is_read_by_the_other_class(
    tiny: ModelBuilder, family: str, first: ServiceClass
) -> None:
    hits, prefix = hits_of(tiny, family, first)
    assert hits == 3 * prefix


@pytest.mark.parametrize("family", ["mistral", "gemma2"])
def test_a_model_with_sliding_windows_shares_within_a_class_alone(
    tiny: ModelBuilder, family: str
) -> None:
    """Two of three batch requests wait for the first of them; interactive ones wait for nobody."""
    hits, prefix = hits_of(tiny, family, ServiceClass.INTERACTIVE)
    assert hits == 2 * prefix
    hits, _ = hits_of(tiny, family, ServiceClass.BATCH)
    assert hits == 0
