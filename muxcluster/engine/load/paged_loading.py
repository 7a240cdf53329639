"""Loads a model's weights into transformers' own definition of it, with our attention.

transformers reads the files: it knows renamed and fused weights (mixtures of experts), ties, and
which buffers to rebuild. We check the files before, and its findings after. Parts of a model that
is divided over several GPUs, and random weights, are our own work (filling.py).
"""

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
    PretrainedConfig,
)

from muxcluster.core.errors import LoadError
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.forward.attention import ATTENTION_NAME
from muxcluster.engine.forward.latents import keep_latents
from muxcluster.engine.load.division.group import RankGroup
from muxcluster.engine.load.dummy import DummyWeights
from muxcluster.engine.load.filling import fill
from muxcluster.engine.load.hf_config import DTYPES, NotPaged, read_config, weight_format
from muxcluster.engine.load.merging import merge_products
from muxcluster.engine.load.parity import (
    check_forward,
    check_hidden,
    check_latents,
    has_llama_layers,
)
from muxcluster.engine.load.probe import probe
from muxcluster.engine.load.quiet import quiet_loading
from muxcluster.engine.load.skeleton import (
    generating_kind,
    names_of_head,
    refusal,
    skeleton,
    without_head,
)
from muxcluster.engine.load.tensor_loading import load_by_tensor
from muxcluster.engine.load.weights import check_weight_files
from muxcluster.engine.states.mixers import keep_states, mixers_of
from muxcluster.engine.vision.loading import check_served, has_images

logger = logging.getLogger(__name__)

Kind = type[
    AutoModel
    | AutoModelForCausalLM
    | AutoModelForImageTextToText
    | AutoModelForSequenceClassification
]


def load_model(
    spec: ModelSpec, device: str, group: RankGroup | None = None, *, is_checked: bool = False
) -> nn.Module:
    """Return the model in `spec.path` on `device` in `spec.dtype`, for inference only.

    load_format "auto" reads safetensors, single or sharded; "dummy" needs only config.json and
    draws weights from `spec.seed`. group: of the ranks that the model is divided over; all of them
    must load it, and each reads and holds only its part. is_checked: the same files were loaded
    before, so the model is not run. Raises LoadError naming the file that is
    missing, corrupt, lacks a tensor or has one of a wrong shape, or whose model cannot be divided,
    or the directory if its logits are not finite; NotPaged if it cannot be served from a paged
    cache; ValueError for an unknown load_format.
    """
    check_load_format(spec)
    directory = Path(spec.path)
    has_states = spec.state_columns > 0
    if has_states and group is not None:
        raise LoadError(directory / "config.json", "models with states are not divided over GPUs")
    config = read_config(directory, trust_remote_code=spec.trust_remote_code, has_states=has_states)
    if has_images(config):
        is_quantised = weight_format(spec) is not None
        check_served(spec, is_divided=group is not None, is_quantised=is_quantised)
    with quiet_loading():
        if group is not None or weight_format(spec) is not None:
            model = load_by_tensor(config, spec, device, group)
        elif spec.load_format == "dummy":
            model = fill(skeleton(config, spec), DummyWeights(spec.seed, device), device)
        else:
            model = read_weights(config, spec, ATTENTION_NAME)
            keep_latents(model)
            if has_states:
                keep_states(model)
            model = _on_device(model, device)
        if has_states and not mixers_of(model):
            message = "its layers with states are of no kind that can be served paged"
            raise NotPaged(directory / "config.json", message)
        model.eval().requires_grad_(False)
        if not is_checked:
            probe(model, spec, directory / "config.json")
            check_latents(model, directory / "config.json")
            check_forward(model, spec)
            if spec.embedding_size:
                check_hidden(model, spec)
    return model


def _on_device(model: nn.Module, device: str) -> nn.Module:
    """Return `model` moved to `device`; on a GPU its merged products are laid out on the way."""
    if torch.device(device).type == "cuda" and has_llama_layers(model):
        merge_products(model, device)
    return model.to(device)


def check_load_format(spec: ModelSpec) -> None:
    if spec.load_format not in ("auto", "dummy"):
        raise ValueError(f"unknown load_format {spec.load_format!r}: use 'auto' or 'dummy'")


def read_weights(
    config: PretrainedConfig,
    spec: ModelSpec,
    attention: str | None,
    kind: Kind | None = None,
) -> nn.Module:
    """Return the model in `spec.path` with the named attention, None: as transformers chooses it.

    kind: None for a model that generates; AutoModel for one without an output layer, whose pooling
    layer, if it has one, nobody reads; or that for a classifier.
    Raises LoadError, as `load_model`, naming the file at fault.
    """
    file = check_weight_files(Path(spec.path))
    kind = kind or generating_kind(config)
    try:
        model, findings = kind.from_pretrained(
            file.parent,
            config=config,
            dtype=DTYPES[spec.dtype],
            attn_implementation=attention,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=spec.trust_remote_code,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except Exception as error:  # transformers raises whatever a bad file leads to
        raise refusal(error, file) from error
    if kind is AutoModel:
        missing = {name for name in findings["missing_keys"] if not name.startswith("pooler.")}
        findings["missing_keys"] = missing
    elif kind is AutoModelForCausalLM and spec.embedding_size:
        # files of an embedding model need not have an output layer
        of_head = {f"{name}.{kind}" for name in names_of_head(model) for kind in ("weight", "bias")}
        findings["missing_keys"] = set(findings["missing_keys"]) - of_head
        model = without_head(model)
    _check(findings, file)
    loaded: nn.Module = model
    return loaded


def _check(findings: dict[str, Any], file: Path) -> None:
    """Check `findings` of the library: sets of names, and (name, in file, in model) mismatches."""
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
