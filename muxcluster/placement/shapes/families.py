"""Model types that the engine can divide over GPUs, and why it cannot divide others."""

from collections.abc import Mapping
from typing import Any

# Each of them, divided over 2 and 4 ranks, gave the whole model's logits, and its ranks held what
# the planner counts (tests/engine/parallel/test_model_types.py).
DIVIDED = frozenset(
    {
        *("apertus", "apertus1p5_text", "arcee", "cohere", "cohere2", "cohere2_moe", "cwm"),
        *("ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe"),
        *("gpt_neox", "gpt_oss", "granite", "helium", "hunyuan_v1_dense", "hyperclovax"),
        *("internlm3", "iquestcoder", "jais2", "llama", "mellum", "ministral", "ministral3"),
        *("mistral", "mixtral", "nanochat", "olmo", "opt", "phi", "phi3", "qwen2", "qwen2_moe"),
        *("qwen3", "qwen3_moe", "seed_oss", "smollm3", "solar_open", "starcoder2", "vaultgemma"),
        *("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3"),
    }
)

# Types that are others by a name of their own, which transformers does not know.
SAME_AS: Mapping[str, str] = {"kimi_k2": "deepseek_v3"}

# Types that our attention cannot serve (engine/load/probe.py).
_DENSE = frozenset(
    {
        *("afmoe", "bloom", "diffllama", "doge", "falcon", "gpt_neox_japanese", "jetmoe"),
        *("llama4_text", "mimo_v2_flash", "mpt"),
        *("nemotron", "openai-gpt", "stablelm", "xglm"),
    }
)
# Types whose layers of attention are on the paged path and whose other layers have their states in
# the sequence's blocks (tests/engine/states). Other types with states run on the dense backend.
PAGED_STATES = frozenset({"bamba", "falcon_h1", "granitemoehybrid", "jamba", "qwen3_next"})

# Encoders that are served: their vectors are those of transformers
# (tests/engine/dense/test_encoders.py). Positions of some begin behind their padding token.
_BEHIND_PADDING = frozenset({"camembert", "mpnet", "roberta", "xlm-roberta"})
_ENCODERS = _BEHIND_PADDING | {"bert", "distilbert", "electra", "modernbert"}
# Types whose models take images: a tower makes embeddings of them.
_WITH_IMAGES = frozenset({"qwen2_5_vl", "qwen2_vl"})
# Types with norms that need the queries and keys of all heads.
_WIDE_NORMS = frozenset(
    {"flex_olmo", "minimax_m2", "minimax_m3_vl_text", "olmo2", "olmo3", "olmoe"}
)
# Known shapes whose config.json would say so, by the beginning of their names.
_SHAPES: Mapping[str, Mapping[str, Any]] = {
    "falcon-": {"model_type": "falcon"},
    "gemma-3-4b": {"text_config": {}},
    "gemma-3-12b": {"text_config": {}},
    "gemma-3-27b": {"text_config": {}},
}


def runs_dense(config: Mapping[str, Any]) -> bool:
    """Return whether models of this config.json's type run on the dense backend alone."""
    return config.get("model_type") in _DENSE


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Return whether models of this config.json are encoders that are served."""
    return config.get("model_type") in _ENCODERS and config.get("is_decoder") is not True


def takes_images(config: Mapping[str, Any]) -> bool:
    """Return whether models of this config.json take images that are served."""
    return str(config.get("model_type")) in _WITH_IMAGES


def num_lost_positions(config: Mapping[str, Any]) -> int:
    """Return how many of the positions that config.json promises no text has."""
    if config.get("model_type") not in _BEHIND_PADDING:
        return 0
    padding = config.get("pad_token_id", 1)
    return 1 + padding if isinstance(padding, int) and padding >= 0 else 2


def undivided(config: Mapping[str, Any]) -> str:
    """Return why a model of this config.json cannot be divided over GPUs.

    "" if it can be, sizes aside, or if the file does not name its type.
    """
    if config.get("text_config") is not None:
        return "it is part of a model of text and other media"
    stored = config.get("quantization_config")
    if isinstance(stored, Mapping) and stored.get("desc_act"):
        return "its inputs share scales in an order of their own (desc_act)"
    kind = str(config.get("model_type", ""))
    if not kind or SAME_AS.get(kind, kind) in DIVIDED:
        return ""
    if kind in _DENSE:
        return f"models of type {kind!r} run on the dense backend"
    if kind in _WIDE_NORMS:
        return f"models of type {kind!r} have norms over all heads"
    return f"for models of type {kind!r} there is no tested plan to divide them"


def undivided_shape(name: str) -> str:
    """Return the same for a model known by the name of its shape."""
    short = name.strip().lower().rpartition("/")[2]
    found = (config for prefix, config in _SHAPES.items() if short.startswith(prefix))
    return undivided(next(found, {}))
