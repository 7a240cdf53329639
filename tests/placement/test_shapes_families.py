"""Shapes read from config.json against the real modules: their matrices and their FLOPs."""

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from muxcluster.placement.shapes.shape import ModelShape

CHANGES = {
    "llama": {"num_key_value_heads": 4},
    "mistral": {},
    "mixtral": {},
    "qwen2": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen2_moe": {"decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "qwen3": {},
    "qwen3_moe": {"head_dim": 128},
    "gemma": {},
    "gemma2": {},
    "gemma3_text": {},
    "phi": {},
    "phi3": {"num_key_value_heads": 8},
    "phimoe": {},
    "gpt_neox": {},
    "gptj": {},
    "opt": {},
    "falcon": {},
    "gpt2": {"n_embd": 1024, "n_head": 16},
    "gpt_bigcode": {"n_embd": 1024, "n_head": 16},
    "bloom": {"hidden_size": 1024, "n_head": 16},
    "mpt": {"d_model": 1024},
    "starcoder2": {},
    "olmo2": {},
    "granitemoeshared": {"shared_intermediate_size": 512},
    "cohere": {},
    "glm4": {},
    "glm4_moe": {"head_dim": 128, "first_k_dense_replace": 2},
    "deepseek_v2": {"num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "deepseek_v3": {"q_lora_rank": None},
    "glm4_moe_lite": {},
    "minicpm3": {},
    "youtu": {},
    "gpt_oss": {},
    "llama4_text": {"interleave_moe_layer_step": 2},
}
LEFT_OUT = {
    "qwen2_moe": 2048,  # the gate of the shared expert, in the one layer that has experts
    "opt": 2 * 768,  # two positions that are never used
    "gpt_oss": 4 * 128 * 3 * 2880,  # biases of the experts, stored as matrices
}
"""Matrix elements that shapes leave out."""


def _config(kind: str, **changes):
    name = CONFIG_MAPPING[kind]().attribute_map.get("num_hidden_layers", "num_hidden_layers")
    return CONFIG_MAPPING[kind](**{name: 4}, **changes)


def _shape(config) -> ModelShape:
    return ModelShape.from_hf_config(json.loads(config.to_json_string()))


@pytest.mark.parametrize("kind", CHANGES)
def test_parameters_are_those_of_the_module(kind: str) -> None:
    config = _config(kind, **CHANGES[kind])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    matrices = sum(each.numel() for each in model.parameters() if each.dim() > 1)
    everything = sum(each.numel() for each in model.parameters())
    shape = _shape(config)
    assert shape.num_params == matrices - LEFT_OUT.get(kind, 0)
    assert shape.num_params == pytest.approx(everything, rel=5e-3)


@pytest.mark.parametrize("kind", CHANGES)
def test_an_absent_tie_flag_means_what_the_family_does(kind: str) -> None:
    config = _config(kind)
    fields = json.loads(config.to_json_string(use_diff=False))
    fields.pop("tie_word_embeddings")
    fields.setdefault("head_dim", 128)
    if fields.get("num_experts_per_tok", 1) is None:  # DeepSeek V2: files have it
        fields["num_experts_per_tok"] = 2
    assert ModelShape.from_hf_config(fields).tied_embeddings == config.tie_word_embeddings


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {"num_key_value_heads": 2, "intermediate_size": 512}),
        ("qwen3", {"num_key_value_heads": 2, "intermediate_size": 512, "head_dim": 64}),
        ("gpt_neox", {"intermediate_size": 512}),
        ("opt", {"ffn_dim": 512, "word_embed_proj_dim": 256}),
        ("mixtral", {"num_key_value_heads": 4, "intermediate_size": 512, "num_local_experts": 4}),
    ],
)
@pytest.mark.parametrize("num_tokens", [16, 192])
def test_flops_are_those_that_torch_counts(kind: str, changes, num_tokens: int) -> None:
    config = _config(kind, hidden_size=256, num_attention_heads=8, vocab_size=1024, **changes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    if kind == "mixtral":
        model.set_experts_implementation("eager")
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model(torch.arange(num_tokens)[None], use_cache=False)
    # every token is multiplied with every key: the mask only hides what was computed
    expected = num_tokens * _shape(config).flops_per_token(num_tokens)
    assert expected == pytest.approx(counter.get_total_flops(), rel=2e-3)
