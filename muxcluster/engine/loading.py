"""Loads a model's weights into transformers' own definition of it, with our attention.

The library does the reading: it knows renamed and fused weights (mixtures of experts), ties, and
which buffers to rebuild. We check the files before and its findings after.
"""

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig

from muxcluster.core.errors import LoadError
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.attention import ATTENTION_NAME
from muxcluster.engine.hf_config import DTYPES, read_config
from muxcluster.engine.probe import probe
from muxcluster.engine.quiet import quiet_loading
from muxcluster.engine.weights import check_weight_files

logger = logging.getLogger(__name__)

DUMMY_STD = 0.02


def load_model(spec: ModelSpec, device: str) -> nn.Module:
    """The model in `spec.path` on `device` in `spec.dtype`, for inference only.

    load_format "auto" reads safetensors, single or sharded; "dummy" needs config.json alone and
    draws weights from `spec.seed`.
    Raises LoadError naming the file that is missing, corrupt, lacks a tensor or has one of a
    wrong shape, or whose model cannot be served from a paged cache; ValueError for an unknown
    load_format.
    """
    directory = Path(spec.path)
    config = read_config(directory)
    with quiet_loading():
        if spec.load_format == "dummy":
            model = _dummy(config, spec, device)
        elif spec.load_format == "auto":
            model = _read(config, spec, check_weight_files(directory)).to(device)
        else:
            raise ValueError(f"unknown load_format {spec.load_format!r}: use 'auto' or 'dummy'")
        model.eval().requires_grad_(False)
        probe(model, spec, directory / "config.json")
    return model


def _read(config: PretrainedConfig, spec: ModelSpec, file: Path) -> nn.Module:
    try:
        model, findings = AutoModelForCausalLM.from_pretrained(
            file.parent,
            config=config,
            dtype=DTYPES[spec.dtype],
            attn_implementation=ATTENTION_NAME,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except Exception as error:  # transformers raises whatever a bad file leads to
        raise _refusal(error, file) from error
    _check(findings, file)
    loaded: nn.Module = model
    return loaded


def _check(findings: dict[str, Any], file: Path) -> None:
    """`findings` of the library: sets of names, and (name, in file, in model) for mismatches."""
    for name, in_file, in_model in sorted(findings["mismatched_keys"]):
        raise LoadError(
            file, f"{name} has shape {tuple(in_file)}, config.json asks for {tuple(in_model)}"
        )
    if findings["missing_keys"]:
        raise LoadError(file, f"lacks {_some(findings['missing_keys'])}")
    if findings["error_msgs"]:
        raise LoadError(file, f"cannot be loaded: {findings['error_msgs'][0]}")
    if findings["unexpected_keys"]:
        unused = _some(findings["unexpected_keys"])
        logger.warning("%s: config.json has no place for %s", file, unused)


def _some(names: Collection[str]) -> str:
    first, *more = sorted(names)
    return f"tensor {first}" + (f" and {len(more)} more" if more else "")


def _dummy(config: PretrainedConfig, spec: ModelSpec, device: str) -> nn.Module:
    config.initializer_range = DUMMY_STD
    place = torch.device(device)
    try:
        with torch.random.fork_rng([] if place.type == "cpu" else [place]), place:
            torch.manual_seed(spec.seed)
            model: nn.Module = AutoModelForCausalLM.from_config(
                config,
                dtype=DTYPES[spec.dtype],
                attn_implementation=ATTENTION_NAME,
                trust_remote_code=False,
            )
    except Exception as error:  # transformers raises whatever a bad value leads to
        raise _refusal(error, Path(spec.path) / "config.json") from error
    return model


def _refusal(error: Exception, file: Path) -> LoadError:
    """Models written before the attention interface look our name up in a table of their own."""
    if isinstance(error, KeyError) and error.args == (ATTENTION_NAME,):
        config_file = file.parent / "config.json"
        return LoadError(config_file, "this type of model is not on the attention interface")
    return LoadError(file, f"cannot be loaded: {error}")
