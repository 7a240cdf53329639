"""Tiny models of real families with random weights, for tests and the demonstration.

Their answers are noise; shapes, attention kinds and files are those of real models.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging as transformers_logging

from muxcluster.demo.tokenizer_training import BOS_ID, EOS_ID, PAD_ID, write_tokenizer

# The libraries' default of 0.02 makes a tiny model repeat a few tokens and hides wrong KV.
WEIGHT_STD = 0.2

NORM_STD = 0.1

_COMMON: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
    }
)

# Configuration of each family, as far as it differs from `_COMMON`.
FAMILIES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": {
            "hidden_size": 192,
            "intermediate_size": 384,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 64,
        },
        "mistral": {
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_key_value_heads": 1,
            "head_dim": 64,
            "sliding_window": 16,
        },
        "qwen2": {
            "vocab_size": 576,
            "hidden_size": 256,
            "intermediate_size": 320,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "tie_word_embeddings": True,
        },
        "qwen3": {
            "vocab_size": 640,
            "hidden_size": 160,
            "intermediate_size": 320,
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
        },
        "opt": {
            "vocab_size": 768,
            "hidden_size": 256,
            "ffn_dim": 512,
            "word_embed_proj_dim": 128,
        },
        "mixtral": {
            "hidden_size": 128,
            "intermediate_size": 192,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": None,
        },
        "qwen2_moe": {
            "hidden_size": 128,
            "intermediate_size": 160,
            "num_key_value_heads": 2,
            "moe_intermediate_size": 96,
            "shared_expert_intermediate_size": 176,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "mlp_only_layers": [1],
        },
        "qwen3_moe": {
            "hidden_size": 128,
            "intermediate_size": 160,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "moe_intermediate_size": 96,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "mlp_only_layers": [0],
        },
        "gemma2": {
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "sliding_window": 16,
            "query_pre_attn_scalar": 48,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 8.0,
        },
        # One piece of a latent in each of three KV heads; experts in all layers but the first.
        "deepseek_v2": {
            "hidden_size": 128,
            "intermediate_size": 160,
            "moe_intermediate_size": 96,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "q_lora_rank": None,
            "kv_lora_rank": 64,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 32,
            "v_head_dim": 48,
        },
        # A whole latent in one KV head.
        "deepseek_v3": {
            "hidden_size": 128,
            "intermediate_size": 160,
            "num_hidden_layers": 3,
            "num_key_value_heads": None,
            "moe_intermediate_size": 96,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "q_lora_rank": 80,
            "kv_lora_rank": 96,
            "qk_nope_head_dim": 48,
            "qk_rope_head_dim": 32,
            "v_head_dim": 40,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 512,
                "mscale": 1.0,
                "mscale_all_dim": 0.8,
            },
        },
        "gpt_neox": {"hidden_size": 128, "intermediate_size": 256},
        "gpt_oss": {
            "hidden_size": 128,
            "intermediate_size": 128,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 16,  # in every other layer
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150000.0,
                "factor": 8.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 256,
            },
        },
        "bloom": {"hidden_size": 128},
        "mpt": {"d_model": 128, "max_seq_len": 2048},
        "mamba": {"hidden_size": 96, "state_size": 8},
        "jamba": {
            "hidden_size": 128,
            "intermediate_size": 192,
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "mamba_d_state": 8,
            "num_experts": 2,
        },
        # Attention in every second layer, the gated delta rule in the others.
        "qwen3_next": {
            "hidden_size": 128,
            "intermediate_size": 160,
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "full_attention_interval": 2,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "moe_intermediate_size": 96,
            "shared_expert_intermediate_size": 96,
            "num_experts": 4,
            "num_experts_per_tok": 2,
        },
        # Attention in every second layer, Mamba-2 in the others.
        "bamba": {
            "hidden_size": 128,
            "intermediate_size": 192,
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "attn_layer_indices": [1, 3],
            "mamba_n_heads": 4,
            "mamba_d_head": 64,
            "mamba_d_state": 16,
            "mamba_n_groups": 2,
            "mamba_chunk_size": 16,
        },
        # As Bamba, with experts.
        "granitemoehybrid": {
            "hidden_size": 128,
            "intermediate_size": 96,
            "shared_intermediate_size": 160,
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "mamba_n_heads": 4,
            "mamba_d_head": 64,
            "mamba_d_state": 16,
            "mamba_n_groups": 2,
            "mamba_chunk_size": 16,
        },
        # Attention and Mamba-2 side by side in all layers.
        "falcon_h1": {
            "hidden_size": 128,
            "intermediate_size": 192,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "mamba_d_ssm": 256,
            "mamba_n_heads": 4,
            "mamba_d_head": 64,
            "mamba_d_state": 16,
            "mamba_n_groups": 2,
            "mamba_chunk_size": 16,
        },
    }
)


def build_model(directory: Path, family: str, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a loadable Hugging Face directory of a tiny random model; returns `directory`.

    family: a key of `FAMILIES`. seed: the same seed gives the same weights. overrides: fields of
    the family's config; `vocab_size` also sizes the tokenizer; `head_dim` of an OPT changes its
    hidden_size.
    Files: config.json, generation_config.json, model.safetensors, tokenizer.json and
    tokenizer_config.json (with a chat template).
    Raises ValueError for an unknown family.
    """
    if family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}: choose from {', '.join(FAMILIES)}")
    fields = {**_COMMON, **FAMILIES[family], **overrides}
    if family == "opt" and "head_dim" in fields:
        fields["hidden_size"] = fields.pop("head_dim") * fields["num_attention_heads"]
    directory.mkdir(parents=True, exist_ok=True)
    config = AutoConfig.for_model(family, **fields)
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    _randomise(model, seed)
    model.generation_config = GenerationConfig(
        bos_token_id=BOS_ID, eos_token_id=EOS_ID, pad_token_id=PAD_ID
    )
    _save_quietly(model, directory)
    write_tokenizer(directory, config.vocab_size)
    return directory


@torch.no_grad()
def _randomise(model: torch.nn.Module, seed: int) -> None:
    """Fill every parameter and stored buffer, biases too: a default would not be tested."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name and name.endswith("weight"):
            parameter.copy_(1 + NORM_STD * noise)
        elif name.endswith("sinks"):
            parameter.copy_(2 + noise)  # such that they take a large part of the attention
        elif name.endswith("dt_bias"):
            parameter.copy_(noise - 3)  # such that states keep what was tens of tokens ago
        else:
            parameter.copy_(WEIGHT_STD * noise)
    stored = model.state_dict(keep_vars=True)
    for name, buffer in model.named_buffers():
        if name in stored and buffer.is_floating_point():
            buffer.copy_(2 * WEIGHT_STD * torch.randn(buffer.shape, generator=generator))


def _save_quietly(model: Any, directory: Path) -> None:
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        model.save_pretrained(directory)
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
