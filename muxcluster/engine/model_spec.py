"""Reads a Hugging Face directory's configuration into the facts the layers above need."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig

from muxcluster.core.errors import LoadError
from muxcluster.core.jsonfile import read_json_object
from muxcluster.core.kvshape import KvShape
from muxcluster.core.unitspec import ModelSpec

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""Names that `ModelSpec.dtype` may have."""

_PAGED_LAYERS = frozenset({"full_attention", "sliding_attention"})
_LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


def model_spec(directory: Path | str, name: str, **overrides: Any) -> ModelSpec:
    """The specification of the model in `directory`, served as `name`.

    overrides: other fields of `ModelSpec` (dtype, max_model_len, max_seqs, ...); dtype defaults
    to "float32", max_model_len to what the config allows.
    Raises LoadError naming the file where one is missing, corrupt, or describes a model that
    cannot be served from a paged cache; ValueError for an unknown dtype.
    """
    directory = Path(directory)
    dtype = overrides.get("dtype", "float32")
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}: use one of {', '.join(DTYPES)}")
    config = read_config(directory)
    file = directory / "config.json"
    text = config.get_text_config()
    longest = _longest(text, file)
    max_model_len = overrides.pop("max_model_len", None) or longest
    if max_model_len > longest:
        raise LoadError(file, f"max_model_len {max_model_len} is over the model's {longest}")
    facts = {
        "shape": _shape(text, DTYPES[dtype].itemsize, file),
        "vocab_size": _positive(text, "vocab_size", file),
        "max_model_len": max_model_len,
        "eos_token_ids": _eos_token_ids(text, directory),
    }
    return ModelSpec(name=name, path=str(directory), **{**facts, **overrides})


def read_config(directory: Path) -> PretrainedConfig:
    """The model's configuration as transformers understands it; nothing remote, no model code.

    Raises LoadError naming config.json where it is missing, not JSON, of an unknown model type,
    quantised, or with layers that are not ordinary attention.
    """
    file = directory / "config.json"
    read_json_object(file)
    try:
        config = AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers raises whatever a bad value leads to
        raise LoadError(file, f"not a model configuration: {_first_line(error)}") from error
    if getattr(config, "quantization_config", None) is not None:
        raise LoadError(file, "quantised weights are not supported")
    layer_types = getattr(config.get_text_config(), "layer_types", None) or ()
    unknown = sorted(set(layer_types) - _PAGED_LAYERS)
    if unknown:
        raise LoadError(file, f"layers of type {', '.join(unknown)} cannot be served paged")
    return config


def _shape(config: PretrainedConfig, itemsize: int, file: Path) -> KvShape:
    num_heads = _positive(config, "num_attention_heads", file)
    head_dim = getattr(config, "head_dim", None)
    if head_dim is None:
        head_dim = _positive(config, "hidden_size", file) // num_heads
    return KvShape(
        num_layers=_positive(config, "num_hidden_layers", file),
        num_kv_heads=getattr(config, "num_key_value_heads", None) or num_heads,
        head_dim=head_dim,
        itemsize=itemsize,
    )


def _positive(config: PretrainedConfig, field: str, file: Path) -> int:
    value = getattr(config, field, None)
    if not isinstance(value, int) or value < 1:
        raise LoadError(file, f"{field} must be a positive integer, got {value!r}")
    return value


def _longest(config: PretrainedConfig, file: Path) -> int:
    """Longest context. Rotary kinds that change with the length of the *batch* stay below the
    length where they would: a request's output must not depend on its neighbours."""
    longest = _positive(config, "max_position_embeddings", file)
    rope: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    by_layer_type = [value for value in rope.values() if isinstance(value, Mapping)]
    for kind in (rope, *by_layer_type):
        if kind.get("rope_type") in _LENGTH_DEPENDENT_ROPE:
            original: int | None = kind.get("original_max_position_embeddings")
            original = original or getattr(config, "original_max_position_embeddings", None)
            longest = min(longest, original or longest)
    return longest


def _eos_token_ids(config: PretrainedConfig, directory: Path) -> tuple[int, ...]:
    """End tokens as `generate` would use them: generation_config.json first, then config.json."""
    file = directory / "generation_config.json"
    eos = read_json_object(file).get("eos_token_id") if file.exists() else None
    if eos is None:
        file, eos = directory / "config.json", getattr(config, "eos_token_id", None)
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(isinstance(token, int) for token in ids):
        raise LoadError(file, f"eos_token_id must be an integer or a list of them, got {eos!r}")
    return tuple(ids)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
