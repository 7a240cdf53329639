"""Reads a model's config.json through transformers, and checks that a paged cache can serve it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PretrainedConfig

from muxcluster.core.errors import LoadError
from muxcluster.core.inputs.json_file import read_json_object
from muxcluster.core.unitspec import ModelSpec
from muxcluster.placement.shapes.config_values import ShapeError
from muxcluster.placement.shapes.families import PAGED_STATES, SAME_AS
from muxcluster.placement.shapes.weight_format import (
    QUANTIZE,
    WeightFormat,
    quantisation_of,
    stored_format,
)

# Names that `ModelSpec.dtype` may have.
DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

_PAGED_LAYERS = frozenset({"full_attention", "sliding_attention"})
_STATE_LAYERS = frozenset({"linear_attention", "mamba", "hybrid", "attention"})


class NotPaged(LoadError):
    """The model is sound, but our paged attention cannot serve it; another backend may."""


def read_config(
    directory: Path, *, trust_remote_code: bool = False, has_states: bool = False
) -> PretrainedConfig:
    """As `any_config`, for a model that the paged backend may serve.

    has_states: blocks for the states of layers without keys and values are planned. Raises NotPaged
    too, if some layers are not ordinary attention, or of a type whose states can be kept so.
    """
    config = any_config(directory, trust_remote_code=trust_remote_code)
    layer_types = getattr(config.get_text_config(), "layer_types", None) or ()
    known = _PAGED_LAYERS
    if has_states and config.get_text_config().model_type in PAGED_STATES:
        known = known | _STATE_LAYERS
    unknown = sorted(set(layer_types) - known)
    if unknown:
        message = f"layers of type {', '.join(unknown)} cannot be served paged"
        raise NotPaged(directory / "config.json", message)
    return config


def any_config(directory: Path, *, trust_remote_code: bool = False) -> PretrainedConfig:
    """Return the model's configuration as transformers reads it; uses no network.

    trust_remote_code: code in the directory may run. Raises LoadError naming config.json if it is
    missing, not JSON, of an unknown model type, or quantised in a way that cannot be served.
    Quantised weights are our own work: what is returned does not speak of them.
    """
    file = directory / "config.json"
    quantisation(directory)
    try:
        config = _read(directory, trust_remote_code)
    except Exception as error:  # transformers raises whatever a bad value leads to
        raise LoadError(file, f"not a model configuration: {_first_line(error)}") from error
    for part in (config, config.get_text_config()):
        if hasattr(part, "quantization_config"):
            del part.quantization_config  # else transformers would make layers of its own
    return config


def _read(directory: Path, trust_remote_code: bool) -> PretrainedConfig:
    """Return the configuration; transformers may raise anything."""
    fields = dict(read_json_object(directory / "config.json"))
    known = SAME_AS.get(str(fields.pop("model_type", "")))
    if known is None:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=trust_remote_code
        )
    else:
        fields.pop("auto_map", None)  # code for a type that needs none
        config = AutoConfig.for_model(known, **fields)
    return config


def quantisation(directory: Path) -> Mapping[str, Any] | None:
    """Return config.json's `quantization_config`, None: weights are stored as they are.

    Raises LoadError if the file cannot be read, or as `stored_format`.
    """
    file = directory / "config.json"
    content = read_json_object(file)
    try:
        return None if stored_format(content) is None else quantisation_of(content)
    except ShapeError as error:
        raise LoadError(file, str(error)) from error


def weight_format(spec: ModelSpec) -> WeightFormat | None:
    """Return the format of the model's linears once loaded, None: they are not quantised.

    Raises LoadError as `quantisation`.
    """
    found = quantisation(Path(spec.path))
    if found is None:
        return QUANTIZE.get(spec.quantize)
    return stored_format({"quantization_config": found})


def rounds_inputs(spec: ModelSpec, model: Any) -> Callable[[nn.Module], bool]:
    """Return which of the model's quantised linears round their inputs.

    Those of `weight_format`, if it says so, but for an output layer that `quantize` rounds. Raises
    LoadError as `quantisation`.
    """
    form = weight_format(spec)
    head = model.get_output_embeddings() if quantisation(Path(spec.path)) is None else None
    return lambda linear: form is not None and form.rounds_inputs and linear is not head


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
