"""Greedy output equals Hugging Face generate, token for token, for every family."""

from pathlib import Path

import pytest

from muxcluster.core.job import Side
from tests.engine.conftest import ModelBuilder
from tests.engine.driver import Driver, Running, drivers, ragged, unit_of
from tests.oracles import GreedyOracle

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "opt", "mixtral", "gpt_oss")
NUM_TOKENS = 20
MOST_NEAR_TIES = 1
"""Of the 160 tokens of a run; none was seen, and a wrong cache makes every token differ."""


def check(directory: Path, sequences: list[Running]) -> None:
    oracle = GreedyOracle(directory)
    for s in sequences:
        oracle.check(s.tokens[: s.num_prompt], s.output)
    assert oracle.num_near_ties <= MOST_NEAR_TIES


@pytest.mark.parametrize("family", FAMILIES)
def test_ragged_chunked_mixed_batches(tiny: ModelBuilder, family: str) -> None:
    directory = tiny(family)
    unit = unit_of(directory)
    (driver,) = drivers(unit)
    sequences = driver.run(ragged(unit.models[0].vocab_size), NUM_TOKENS)
    assert len({tuple(s.output) for s in sequences}) == 8
    assert all(len(set(s.output)) > NUM_TOKENS // 3 for s in sequences)
    check(directory, sequences)


@pytest.mark.parametrize("family", FAMILIES)
def test_whole_prompts_filled_from_the_right(tiny: ModelBuilder, family: str) -> None:
    directory = tiny(family)
    unit = unit_of(directory)
    (driver,) = drivers(unit)
    prompts = ragged(unit.models[0].vocab_size, 4, seed=3)
    check(directory, driver.run(prompts, NUM_TOKENS, chunk=1000, side=Side.RIGHT))


SCALED_ROPE = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}
VARIANTS = (
    ("llama", {"num_key_value_heads": 6, "attention_bias": True}),
    ("llama", {"tie_word_embeddings": True, "rope_parameters": SCALED_ROPE}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    ("qwen3", {"head_dim": 128, "tie_word_embeddings": True}),
    ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 256}),
    ("opt", {"head_dim": 128}),
    ("mixtral", {"sliding_window": 12, "num_experts_per_tok": 1}),
    ("gemma2", {}),
    ("gpt_oss", {"sliding_window": 5, "num_key_value_heads": 4, "num_experts_per_tok": 1}),
)
"""One more way of attention each: no groups, biases, ties, windows in some layers, soft-cap,
sinks."""


@pytest.mark.parametrize(("family", "overrides"), VARIANTS)
def test_variants(tiny: ModelBuilder, family: str, overrides: dict[str, object]) -> None:
    directory = tiny(family, **overrides)
    unit = unit_of(directory)
    (driver,) = drivers(unit)
    check(directory, driver.run(ragged(unit.models[0].vocab_size, 4, seed=5), NUM_TOKENS))


def test_several_decode_steps_in_one_job(tiny: ModelBuilder) -> None:
    directory = tiny("qwen3")
    unit = unit_of(directory)
    one, several = drivers(unit)[0], drivers(unit)[0]
    prompts = ragged(unit.models[0].vocab_size, 5)
    expected = one.run(prompts, 13)
    running = [several.admit(prompt) for prompt in prompts]
    several.step(running, chunk=1000)
    several.step(running, chunk=1, max_steps=5)
    result = several.step(running, chunk=1, max_steps=7)
    assert result.counts.tolist() == [7] * 5
    assert [s.output for s in running] == [s.output for s in expected]


def test_models_of_one_pool_do_not_disturb_each_other(tiny: ModelBuilder) -> None:
    """Different layers, heads, head sizes, vocabularies and sides, job by job in turn."""
    unit = unit_of(tiny("llama"), tiny("qwen3", head_dim=128), tiny("opt"))
    three = drivers(unit)
    everyone: list[list[Running]] = [[], [], []]
    for step in range(NUM_TOKENS):
        for driver, sequences in zip(three, everyone, strict=True):
            _one_step(driver, sequences, step)
    for model, sequences in zip(unit.models, everyone, strict=True):
        assert all(len(s.output) > 3 for s in sequences)
        check(Path(model.path), sequences)


def _one_step(driver: Driver, sequences: list[Running], step: int) -> None:
    if step < 4:
        (prompt,) = ragged(driver.spec.vocab_size, 2, seed=step)[1:]
        sequences.append(driver.admit(prompt, side=Side.RIGHT if step % 2 else Side.LEFT))
    driver.step(sequences, chunk=20)
