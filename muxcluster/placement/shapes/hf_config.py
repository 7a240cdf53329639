"""Conversion of a Hugging Face config.json of any family to the fields of a `ModelShape`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muxcluster.placement.shapes.config_values import (
    ShapeError,
    first_integer,
    flag,
    integer,
    listed,
)
from muxcluster.placement.shapes.families import PAGED_STATES
from muxcluster.placement.shapes.latent import latent_attention
from muxcluster.placement.shapes.state_layers import state_fields
from muxcluster.placement.shapes.vision import vision_params
from muxcluster.placement.shapes.weight_format import WeightFormat, stored_format
from muxcluster.placement.shapes.windows import window_fields

_UNGATED = frozenset(
    {
        "opt",
        "gpt2",
        "gpt_neo",
        "gpt_neox",
        "gptj",
        "gpt_bigcode",
        "bloom",
        "mpt",
        "falcon",
        "phi",
        "codegen",
        "starcoder2",
        "nemotron",
        "persimmon",
        "xglm",
        "biogpt",
        "arcee",
        "apertus",
        "bert",
        "camembert",
        "distilbert",
        "electra",
        "mpnet",
        "roberta",
        "xlm-roberta",
    }
)
_TIED = frozenset(
    {
        "opt",
        "gpt2",
        "gpt_neo",
        "gpt_bigcode",
        "bloom",
        "mpt",
        "falcon",
        "starcoder2",
        "gemma",
        "gemma2",
        "gemma3_text",
        "cohere",
        "cohere2",
        "smollm3",
        "ernie4_5",
        "xglm",
        "biogpt",
        "mamba",
        "falcon_mamba",
        "minicpm3",
        "youtu",
    }
)
_LEARNED_POSITIONS = frozenset({"opt", "gpt2", "gpt_neo", "gpt_bigcode", "biogpt"})
_QUANTISED_EXPERTS = ("gpt_oss",)  # types whose experts alone may be quantised
_MULTI_QUERY = frozenset({"falcon", "gpt_bigcode"})
_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "n_embed", "dim"),
    "num_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim",),
    "vocab_size": ("vocab_size",),
    "max_position": (
        *("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length"),
    ),
    "intermediate_size": (
        *("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "hidden_dim"),
    ),
    "num_experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "num_experts_per_token", "experts_per_token"),
    "expert_size": ("moe_intermediate_size",),
    "dense_size": ("intermediate_size_mlp",),
    "shared_size": ("shared_expert_intermediate_size", "shared_intermediate_size"),
}
# Family defaults that real files leave out.
_OMITTED: Mapping[str, Mapping[str, int]] = {
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256},
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
    },
    "glm4_moe_lite": {"first_k_dense_replace": 1},
    "qwen3": {"head_dim": 128},
    "jamba": {
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
}
# Layers are processed one by one, so their number must be realistic.
_MOST_LAYERS = 2**14
# Values for a model without attention layers.
_NO_ATTENTION: Mapping[str, int] = {
    "num_heads": 1,
    "num_kv_heads": 1,
    "head_dim": 1,
    "intermediate_size": 0,
}
# Tokens of these attend to later ones too, unless is_decoder makes causal language models of them;
# those that are served are in families.py.
_ENCODERS = frozenset(
    {
        *("albert", "big_bird", "convbert", "data2vec-text", "deberta", "deberta-v2", "ernie"),
        *("eurobert", "longformer", "mobilebert", "nomic_bert", "roformer", "xlm-roberta-xl"),
        "xmod",
    }
)
_UNSUPPORTED: Mapping[str, str] = {
    "is_encoder_decoder": "an encoder-decoder model",
    "num_kv_shared_layers": "layers that share one KV cache",
    "global_head_dim": "layers with heads of different sizes",
    "lru_width": "recurrent layers",
    "conv_L_cache": "convolution layers",
}


def shape_fields(source: Path | str | Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `ModelShape` from a config.json: its content, the file, or its directory.

    Raises OSError or ShapeError.
    """
    whole = source if isinstance(source, Mapping) else _read(Path(source))
    config = _text_part(whole)
    _refuse_other_kinds(config)
    kind = str(config.get("model_type", ""))
    # if a file has both, transformers takes the older key
    hidden = first_integer(config, ("n_embed",)) or _number(config, "hidden_size")
    layers = _number(config, "num_layers")
    if layers > _MOST_LAYERS:
        raise ShapeError(f"num_hidden_layers is {layers}, expected {_MOST_LAYERS} at most")
    states = state_fields(config, kind, layers, hidden)
    has_attention = not states or states["num_keyless_layers"] < layers
    of_layers = _layer_fields(config, kind, layers, hidden) if has_attention else _NO_ATTENTION
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "vocab_size": _number(config, "vocab_size"),
        "max_position": _number(config, "max_position", 2048),
        "gated_mlp": kind not in _UNGATED,
        "tied_embeddings": flag(config, "tie_word_embeddings", kind in _TIED),
        "learned_positions": kind in _LEARNED_POSITIONS,
        "weights": _weights(whole, kind),
        "vision_params": vision_params(whole),
        # windows beside states have no kind of columns
        "pages_states": (
            states.get("num_state_layers", 0) > 0
            and has_attention
            and kind in PAGED_STATES
            and not of_layers.get("window")
        ),
        **of_layers,
        **states,
    }


def _weights(whole: Mapping[str, Any], kind: str) -> WeightFormat | None:
    """Return how the weights are stored. Raises ShapeError, as `stored_format` and for experts of
    an unknown layout."""
    found = stored_format(whole)
    if found is not None and found.of_experts and kind not in _QUANTISED_EXPERTS:
        known = ", ".join(_QUANTISED_EXPERTS)
        raise ShapeError(f"{found.name}: served of {known} alone, not of {kind:.40}")
    return found


def _layer_fields(
    config: Mapping[str, Any], kind: str, layers: int, hidden: int
) -> Mapping[str, Any]:
    """Return the fields of the layers' attention and MLP."""
    heads = _number(config, "num_heads")
    latent = latent_attention(config, kind, hidden // heads)
    if latent is None:
        kv_heads, head_dim = _kv_heads(config, kind, heads), _head_dim(config, hidden, heads)
    else:
        kv_heads, head_dim = latent.stored_heads
    return {
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "latent": latent,
        **window_fields(config, kind, layers),
        **_mlp_fields(config, kind, layers, hidden),
    }


def _read(path: Path) -> Mapping[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ShapeError(f"not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ShapeError("expected a JSON object")
    return config


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's own keys, without nulls and with the family's defaults."""
    text = config.get("text_config") or config
    if not isinstance(text, Mapping):
        raise ShapeError(f"text_config is {text!r:.80}, expected an object")
    tied = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    omitted = _OMITTED.get(str(text.get("model_type", "")), {})
    return {**omitted, **tied, **{key: value for key, value in text.items() if value is not None}}


def _refuse_other_kinds(config: Mapping[str, Any]) -> None:
    for key, meaning in _UNSUPPORTED.items():
        if config.get(key):
            raise ShapeError(f"{key} is set: no support for {meaning}")
    kind = str(config.get("model_type", ""))
    is_encoder = kind in _ENCODERS and config.get("is_decoder") is not True
    sees_all = config.get("is_causal") is False or config.get("use_bidirectional_attention") is True
    if is_encoder or sees_all:
        message = f"tokens of {kind:.40} attend to later ones: only decoders are served"
        raise ShapeError(message)


def _number(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return the positive integer called `name` under any spelling."""
    found = first_integer(config, _SPELLINGS[name]) or default
    if found is None:
        raise ShapeError(f"{_SPELLINGS[name][0]} is missing")
    return found


def _kv_heads(config: Mapping[str, Any], kind: str, heads: int) -> int:
    if kind in _MULTI_QUERY and not flag(config, "new_decoder_architecture", False):
        return 1 if flag(config, "multi_query", True) else heads
    value = _number(config, "num_kv_heads", heads)
    if heads % value:
        raise ShapeError(f"num_key_value_heads is {value}, expected a divisor of {heads}")
    return value


def _head_dim(config: Mapping[str, Any], hidden: int, heads: int) -> int:
    if "head_dim" not in config and hidden % heads:
        raise ShapeError(f"hidden_size is {hidden}, expected a multiple of {heads} heads")
    return _number(config, "head_dim", hidden // heads)


def _mlp_fields(
    config: Mapping[str, Any], kind: str, layers: int, hidden: int
) -> Mapping[str, int]:
    inner = _number(config, "intermediate_size", 4 * hidden)
    if config.get("num_local_experts") == 0:
        return {"intermediate_size": _shared_size(config, kind, 0) or inner}
    experts = _number(config, "num_experts", 1)
    if experts == 1:
        return {"intermediate_size": inner}
    size, chosen = _number(config, "expert_size", inner), _number(config, "experts_per_token")
    if chosen > experts:
        raise ShapeError(f"num_experts_per_tok is {chosen}, more than the {experts} experts")
    return {
        "intermediate_size": size,
        "num_experts": experts,
        "experts_per_token": chosen,
        "shared_intermediate_size": _shared_size(config, kind, size),
        "num_dense_layers": _num_dense_layers(config, layers),
        "dense_intermediate_size": _number(config, "dense_size", inner),
    }


def _shared_size(config: Mapping[str, Any], kind: str, expert_size: int) -> int:
    """Width of the MLP that every token passes beside its experts, else 0."""
    for key in _SPELLINGS["shared_size"]:
        if key in config:
            return integer(config, key, 0)
    if kind == "llama4_text":
        return expert_size
    return integer(config, "n_shared_experts", 0) * expert_size


def _num_dense_layers(config: Mapping[str, Any], layers: int) -> int:
    """Layers with one MLP in place of experts: listed ones, the first ones, or every n-th."""
    first = integer(config, "first_k_dense_replace", 0)
    step = integer(config, "decoder_sparse_step", 1)
    step *= integer(config, "interleave_moe_layer_step", 1)
    named = listed(config, "mlp_only_layers")
    kinds = listed(config, "mlp_layer_types")
    if kinds:
        return sum(kind == "dense" for kind in kinds[:layers])
    period = integer(config, "expert_layer_period", 1)
    offset = integer(config, "expert_layer_offset", 0) % period
    return sum(
        layer < first or (layer + 1) % step > 0 or layer in named or layer % period != offset
        for layer in range(layers)
    )
