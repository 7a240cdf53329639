"""Greedy output of models divided over real rank processes equals Hugging Face generate."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from muxcluster.engine.parallel.executor import RanksExecutor
from tests.blocks import scaled
from tests.engine.parallel.conftest import ModelBuilder
from tests.engine.parallel.ranks import over_ranks
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

pytestmark = [
    pytest.mark.usefixtures("fast_children"),
    pytest.mark.timeout(scaled(600, 8)),
]

NUM_TOKENS = scaled(20, 8)

MATRIX: Mapping[str, Mapping[str, object]] = {
    "llama": {"num_attention_heads": 8},
    "llama-ragged": {
        "num_attention_heads": 12, "num_key_value_heads": 3, "intermediate_size": 383,
        "vocab_size": 515, "tie_word_embeddings": True,
    },
    "mistral": {},
    "mistral-ragged": {"vocab_size": 517},
    "qwen2": {},
    "qwen3": {},
    "qwen3-ragged": {"vocab_size": 641},
    "opt": {},
    "opt-ragged": {"vocab_size": 771, "do_layer_norm_before": False, "word_embed_proj_dim": 256},
    "mixtral": {},
    "mixtral-ragged": {"vocab_size": 514, "intermediate_size": 200, "sliding_window": 12},
    "qwen2_moe": {},
    "qwen3_moe": {},
    "gemma2": {},
    "gpt_neox": {},
    "gpt_oss": {},
    "gpt_oss-ragged": {"vocab_size": 514, "intermediate_size": 104, "sliding_window": 5},
}  # fmt: skip
"""By name; a family's is what stands before the dash. With 4 ranks all but OPT and GPT-NeoX have
fewer KV heads than ranks, with 2 ranks Mistral; ragged ones have what no number divides."""


def check_on_ranks(tiny: ModelBuilder, names: Iterable[str], size: int) -> None:
    """All models in one unit, and every output Hugging Face's."""
    directories = {name: built(tiny, name) for name in names}
    spec = over_ranks(spec_of(directories.values(), lane="temporal", partition="none"), size)
    asked: dict[str, list[int]] = {}
    for model in spec.models:
        asked |= prompts(model.name, 4, model.vocab_size, longest=scaled(40, 8))
    with running(spec, RanksExecutor(spec)) as (unit, sink):
        submit(unit, asked, greedy(NUM_TOKENS))
        sink.wait_for_ends(len(asked))
        check_lengths(sink, asked, NUM_TOKENS)
        check_nothing_leaks(unit)
    oracles = {name: GreedyOracle(path) for name, path in directories.items()}
    for request_id, prompt in asked.items():
        oracles[request_id.split("/")[0]].check(prompt, sink.tokens[request_id])
    assert sum(oracle.num_near_ties for oracle in oracles.values()) <= 1


def built(tiny: ModelBuilder, name: str) -> Path:
    return tiny(name, name.split("-")[0], **MATRIX[name])


def test_replicated_heads_experts_and_a_plan_of_our_own(tiny: ModelBuilder) -> None:
    check_on_ranks(tiny, ["mistral-ragged", "opt", "mixtral"], 2)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("family", sorted({name.split("-")[0] for name in MATRIX}))
def test_every_family(tiny: ModelBuilder, family: str, size: int) -> None:
    check_on_ranks(tiny, [name for name in MATRIX if name.split("-")[0] == family], size)
