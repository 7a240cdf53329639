"""Latent attention in the engine's steps: Hugging Face's tokens, of latents in the pool."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek_v3

from muxcluster.core.job import Side
from muxcluster.engine.forward.latents import Expansion
from muxcluster.engine.forward.paged_attention import PagedAttention
from muxcluster.engine.load.hf_config import NotPaged
from muxcluster.engine.load.paged_loading import load_model
from tests.engine.conftest import ModelBuilder
from tests.engine.driver import Driver, Running, drivers, ragged, unit_of
from tests.engine.latents import needs_latents
from tests.engine.parallel.test_model_types import build
from tests.oracles import GreedyOracle

pytestmark = needs_latents

FAMILIES = ("deepseek_v2", "deepseek_v3")
NUM_TOKENS = 20


def check(tiny: ModelBuilder, family: str, sequences: list[Running]) -> None:
    oracle = GreedyOracle(tiny(family))
    for s in sequences:
        oracle.check(s.tokens[: s.num_prompt], s.output)
    assert oracle.num_near_ties <= 1


@pytest.mark.parametrize("family", FAMILIES)
def test_ragged_chunked_mixed_batches(tiny: ModelBuilder, family: str) -> None:
    (driver,) = drivers(unit_of(tiny(family)))
    sequences = driver.run(ragged(driver.spec.vocab_size), NUM_TOKENS)
    assert len({tuple(s.output) for s in sequences}) == 8
    assert all(len(set(s.output)) > NUM_TOKENS // 3 for s in sequences)
    check(tiny, family, sequences)


@pytest.mark.parametrize("family", FAMILIES)
def test_whole_prompts_filled_from_the_right_and_several_steps_in_one_job(
    tiny: ModelBuilder, family: str
) -> None:
    (driver,) = drivers(unit_of(tiny(family)))
    prompts = ragged(driver.spec.vocab_size, 4, seed=3)
    running = [driver.admit(prompt, side=Side.RIGHT) for prompt in prompts]
    driver.step(running, chunk=1000)
    driver.step(running, chunk=1, max_steps=7)
    driver.step(running, chunk=1, max_steps=5)
    assert all(len(s.output) == 13 for s in running)
    check(tiny, family, running)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gpus_path_yields_the_same_tokens(tiny: ModelBuilder, family: str) -> None:
    unit = unit_of(tiny(family))
    prompts = ragged(unit.models[0].vocab_size, 6, seed=2)
    planned, paged = drivers(unit)[0], drivers(unit)[0]
    paged.runner._models[unit.models[0].name]._steps._forward._attention = PagedAttention
    expected = planned.run(prompts, 12, side=Side.RIGHT)
    found = paged.run(prompts, 12, side=Side.RIGHT)
    assert [s.output for s in found] == [s.output for s in expected]


def prefilled(tiny: ModelBuilder, family: str) -> tuple[Driver, Running]:
    (driver,) = drivers(unit_of(tiny(family)))
    sequence = driver.admit(ragged(driver.spec.vocab_size, 2, seed=4)[1][:43])
    driver.step([sequence], chunk=1000)
    return driver, sequence


def decoded(driver: Driver, sequence: Running) -> list[int]:
    while len(sequence.output) < 12:
        driver.step([sequence], chunk=1)
    return sequence.output


@pytest.mark.parametrize("family", FAMILIES)
def test_one_corrupted_block_changes_the_output(tiny: ModelBuilder, family: str) -> None:
    """Whichever piece of the latents it holds."""
    expected = decoded(*prefilled(tiny, family))
    for head in range(unit_of(tiny(family)).models[0].shape.num_kv_heads):
        driver, sequence = prefilled(tiny, family)
        block = driver.runner.arena.pool[driver.deltas[0][2][head]].view(torch.float32)
        block.copy_(torch.randn(block.shape, generator=torch.Generator().manual_seed(0)))
        assert decoded(driver, sequence) != expected


@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_keeps_its_latent_and_nothing_else(tiny: ModelBuilder, family: str) -> None:
    spec = unit_of(tiny(family)).models[0]
    model = load_model(spec, "cpu")
    config = model.config
    elements = config.num_hidden_layers * (config.kv_lora_rank + config.qk_rope_head_dim)
    assert spec.shape.bytes_per_token == 4 * elements
    heads = config.num_attention_heads
    expanded = heads * (config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim)
    assert spec.shape.bytes_per_token < 4 * config.num_hidden_layers * expanded / 2


def test_weights_of_the_expansion_are_in_memory_once(tiny: ModelBuilder) -> None:
    """They are read as they lie: nothing keeps a packed copy of them."""
    (driver,) = drivers(unit_of(tiny("deepseek_v3")))
    forward = driver.runner._models[driver.spec.name]._steps._forward._forward
    layer = forward._model.model.layers[0].self_attn
    assert isinstance(layer.kv_b_proj, Expansion)
    assert layer.kv_b_proj.weight.shape == (4 * (48 + 40), 96)
    assert not isinstance(layer.o_proj, torch.nn.Linear), "nothing is packed here"


def test_a_layer_that_expands_its_latents_otherwise_is_refused(
    tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another version of transformers might."""
    kind = deepseek_v3.DeepseekV3Attention
    expand = kind.expand_kv

    def rotary_first(self: Any, latents: torch.Tensor, rotary_keys: torch.Tensor) -> Any:
        keys, values = expand(self, latents, rotary_keys)
        return keys.roll(self.qk_rope_head_dim, -1), values

    monkeypatch.setattr(kind, "expand_kv", rotary_first)
    with pytest.raises(NotPaged, match="its keys and values differ"):
        load_model(unit_of(tiny("deepseek_v3")).models[0], "cpu")


@pytest.mark.parametrize("kind", ["glm4_moe_lite", "minicpm3", "youtu"])
def test_other_types(tmp_path: Path, kind: str) -> None:
    """Latents of 528 and 576 elements, in many KV heads."""
    directory = build(tmp_path / kind, kind)
    file = directory / "config.json"
    config = json.loads(file.read_text())
    config["num_key_value_heads"] = config["num_attention_heads"]  # the library relies on it
    file.write_text(json.dumps(config))
    (driver,) = drivers(unit_of(directory))
    prompts = [prompt[:40] for prompt in ragged(driver.spec.vocab_size, 4, seed=5)]
    oracle = GreedyOracle(directory)
    for s in driver.run(prompts, 10):
        oracle.check(s.tokens[: s.num_prompt], s.output)
    assert oracle.num_near_ties <= 1


def test_kimi_k2_is_deepseek_v3_by_another_name(tiny: ModelBuilder, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(tiny("deepseek_v3"), tmp_path / "kimi"))
    file = directory / "config.json"
    code = {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}
    named = json.loads(file.read_text()) | {"model_type": "kimi_k2", "auto_map": code}
    file.write_text(json.dumps(named))
    ours, theirs = (drivers(unit_of(each))[0] for each in (directory, tiny("deepseek_v3")))
    prompts = ragged(ours.spec.vocab_size, 3, seed=6)
    expected = [s.output for s in theirs.run(prompts, 8)]
    assert [s.output for s in ours.run(prompts, 8)] == expected
