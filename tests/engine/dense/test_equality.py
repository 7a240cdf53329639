"""Greedy output through a churning padded batch equals `generate` of each query alone."""

import pytest
import torch

from tests.amounts import slow
from tests.engine.conftest import ModelBuilder
from tests.engine.dense.churn import Churn, queries
from tests.engine.dense.models import dense_model
from tests.oracles import GreedyOracle

FAMILIES = ("llama", "mistral", "gpt_neox", "bloom", "mpt", "mamba", "jamba")
TAKES_HOLES = {"llama", "gpt_neox", "bloom"}
"""Not Mistral: its window of 16 counts columns, and a hole would push tokens out of it. Not MPT,
whose ALiBi counts columns, too."""
MOST_NEAR_TIES = 1
"""Of some 360 tokens; none was seen, and a wrong cache makes every token differ."""


@pytest.mark.parametrize("family", [FAMILIES[0], *slow(*FAMILIES[1:])])
@torch.inference_mode()
def test_thirty_queries_come_and_go(tiny: ModelBuilder, family: str) -> None:
    directory = tiny(family)
    model = dense_model(directory)
    assert model.takes_holes == (family in TAKES_HOLES)
    asked = queries(model.forward.vocab_size, 30, seed=7)
    churn = Churn(model, asked, seed=11)
    churn.run()
    counts = churn.counts
    assert min(counts.embedded, counts.preempted, counts.resumed, counts.scaled) > 5
    assert (counts.shaped > 5) == model.takes_holes
    assert any(len(set(query.output)) > 8 for query in asked)
    oracle = GreedyOracle(directory)
    for query in asked:
        assert len(query.output) == query.num_tokens
        oracle.check(query.prompt, query.output)
    assert oracle.num_near_ties <= MOST_NEAR_TIES


def test_a_wrong_value_changes_the_output(tiny: ModelBuilder) -> None:
    """The oracle sees what lies in a batch's cache: a model that repeats itself would not show."""
    model = dense_model(tiny("bloom"))
    (query,) = queries(model.forward.vocab_size, 1, seed=3)
    query.num_tokens = 12
    with torch.inference_mode():
        Churn(model, [query], seed=1).run()
    query.prompt[0] ^= 1
    with pytest.raises(AssertionError, match="Hugging Face says"):
        GreedyOracle(tiny("bloom")).check(query.prompt, query.output)
