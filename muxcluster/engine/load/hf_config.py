"""Reads a model's config.json through transformers, and checks that a paged cache can serve it."""

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import AutoConfig, PretrainedConfig

from muxcluster.core.errors import LoadError
from muxcluster.core.inputs.json_file import read_json_object

# Names that `ModelSpec.dtype` may have.
DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

_PAGED_LAYERS = frozenset({"full_attention", "sliding_attention"})


class NotPaged(LoadError):
    """The model is sound, but our paged attention cannot serve it; another backend may."""


def read_config(directory: Path, *, trust_remote_code: bool = False) -> PretrainedConfig:
    """As `any_config`, for a model that the paged backend may serve.

    Raises NotPaged too, if some layers are not ordinary attention.
    """
    config = any_config(directory, trust_remote_code=trust_remote_code)
    layer_types = getattr(config.get_text_config(), "layer_types", None) or ()
    unknown = sorted(set(layer_types) - _PAGED_LAYERS)
    if unknown:
        message = f"layers of type {', '.join(unknown)} cannot be served paged"
        raise NotPaged(directory / "config.json", message)
    return config


def any_config(directory: Path, *, trust_remote_code: bool = False) -> PretrainedConfig:
    """Return the model's configuration as transformers reads it; uses no network.

    trust_remote_code: code in the directory may run. Raises LoadError naming config.json if it is
    missing, not JSON, of an unknown model type, or quantised.
    """
    file = directory / "config.json"
    read_json_object(file)
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # transformers raises whatever a bad value leads to
        raise LoadError(file, f"not a model configuration: {_first_line(error)}") from error
    if getattr(config, "quantization_config", None) is not None:
        raise LoadError(file, "quantised weights are not supported")
    return config


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
