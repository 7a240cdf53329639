"""Shapes of models that keep states, against the real ones: matrices, and what caches hold."""

import json
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from muxcluster.engine.dense.cachetree import leaves
from muxcluster.engine.dense.forward import CACHE_NAMES
from muxcluster.placement.shapes.shape import ModelShape, ShapeError

SIZES = {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 96}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
MAMBA_2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 2}
KINDS: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 8, "expand": 3, "time_step_rank": "auto"},
    "falcon_mamba": {"state_size": 8, "conv_kernel": 3},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 8, "n_groups": 2},
    "jamba": {
        **HEADS,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 8,
        "num_experts": 3,
        "expert_layer_period": 4,
        "expert_layer_offset": 1,
    },
    "bamba": {**HEADS, **MAMBA_2, "attn_layer_indices": [2]},
    "falcon_h1": {**HEADS, **MAMBA_2, "mamba_d_ssm": 128, "head_dim": 16},
    "qwen3_next": {
        **HEADS,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
}
NUM_TOKENS = 5
LEFT_OUT = {
    # the gates of attention, in one layer, and of the shared expert, in all four
    "qwen3_next": 4 * 16 * 64 + 4 * 64,
}
"""Matrix elements that shapes leave out."""


@pytest.fixture(params=KINDS)
def model(request) -> Any:
    config = CONFIG_MAPPING[request.param](**SIZES, **KINDS[request.param])
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def _shape(model: Any) -> ModelShape:
    return ModelShape.from_hf_config(json.loads(model.config.to_json_string()))


def test_parameters_are_those_of_the_module(model) -> None:
    matrices = sum(each.numel() for each in model.parameters() if each.dim() > 1)
    left_out = LEFT_OUT.get(model.config.model_type, 0)
    assert _shape(model).num_params == matrices - left_out


def test_a_sequence_takes_what_its_cache_holds(model) -> None:
    with torch.inference_mode():
        cache = model(torch.arange(NUM_TOKENS)[None], use_cache=True)
    held = next(cache[name] for name in CACHE_NAMES if cache.get(name) is not None)
    found = sum(leaf.nbytes for leaf in leaves(held) if isinstance(leaf, torch.Tensor))
    assert _shape(model).sequence_bytes(NUM_TOKENS, 4) == found


OF_STATES = {"model_type": "new", **SIZES, "state_size": 8, "conv_kernel": 4}


def test_an_unknown_type_with_the_sizes_of_its_states_is_one_of_states_alone() -> None:
    shape = ModelShape.from_hf_config(OF_STATES)
    assert (shape.num_attention_layers, shape.num_state_layers) == (0, 4)
    assert shape.state_size == 4 * 2 * 64 * (8 + 4)
    assert shape.kv_bytes_per_token(2) == 0 < shape.num_params


@pytest.mark.parametrize(
    ("placed", "num_attention", "num_states"),
    [
        ({"layer_types": ["mamba", "full_attention", "mamba", "mamba"]}, 1, 3),
        ({"layers_block_type": ["mamba", "hybrid", "attention", "mamba"]}, 2, 3),
        ({"attn_layer_indices": [0, 2, 9]}, 2, 2),
        ({"attn_layer_period": 3, "attn_layer_offset": 1}, 1, 3),
    ],
)
def test_where_an_unknown_hybrid_attends_is_read(placed, num_attention, num_states) -> None:
    shape = ModelShape.from_hf_config({**OF_STATES, **HEADS, **placed})
    assert (shape.num_attention_layers, shape.num_state_layers) == (num_attention, num_states)
    assert shape.kv_bytes_per_token(4) == num_attention * 2 * 2 * 16 * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state_size": None}, "state_size is missing"),
        ({"conv_kernel": None}, "conv_kernel is missing"),
        ({"n_groups": 1}, "mamba_n_heads is missing"),
        (HEADS, "which are which is not said: expected layer_types"),
        ({**HEADS, "layer_types": ["mamba"]}, "layer_types has 1 entries"),
        ({**HEADS, "layers_block_type": ["mamba", "mlp", "moe", "mamba"]}, "has mlp, moe"),
        ({"state_size": None, "conv_kernel": None, "linear_num_key_heads": 2}, "linear_num_value"),
    ],
)
def test_what_is_not_said_is_named(change, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        ModelShape.from_hf_config({**OF_STATES, **change})
