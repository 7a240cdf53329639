"""Fills a model tensor by tensor: one rank's part, of which no rank ever holds all, or one whose
linears are quantised."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PretrainedConfig

from muxcluster.core.errors import LoadError
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.load.division.division import connect, divide
from muxcluster.engine.load.division.group import RankGroup
from muxcluster.engine.load.division.part import Part
from muxcluster.engine.load.division.stored_weights import WeightFiles
from muxcluster.engine.load.dummy import DummyWeights
from muxcluster.engine.load.filling import WeightSource, fill
from muxcluster.engine.load.hf_config import (
    quantisation,
    read_config,
    rounds_inputs,
    weight_format,
)
from muxcluster.engine.load.quiet import quiet_loading
from muxcluster.engine.load.skeleton import skeleton
from muxcluster.engine.load.weights import check_weight_files, tensors_by_file
from muxcluster.engine.quantised.formats import BadTensors, read_weight
from muxcluster.engine.quantised.mxfp4_experts import (
    BadExperts,
    dummy_experts,
    replace_experts,
    stored_experts,
)
from muxcluster.engine.quantised.replacing import LinearSource, NoPart, replace_linears
from muxcluster.engine.quantised.rounding import quantised
from muxcluster.engine.quantised.weight import QuantisedWeight
from muxcluster.placement.shapes.division import expert_step
from muxcluster.placement.shapes.weight_format import QUANTIZE_HEAD, WeightFormat

logger = logging.getLogger(__name__)


def load_by_tensor(
    config: PretrainedConfig, spec: ModelSpec, device: str, group: RankGroup | None = None
) -> nn.Module:
    """Return the model on `device`, or this rank's part of it, joined to the others' by `group`.

    Raises LoadError as `divide`, and naming the file that is missing, broken or lacks a tensor.
    """
    directory = Path(spec.path)
    model = skeleton(config, spec)
    division = None
    if group is not None:
        step = expert_step(weight_format(spec))
        division = divide(model, directory / "config.json", group, step)
    parts = {} if division is None else division.parts
    source: WeightSource
    if spec.load_format == "dummy":
        source = DummyWeights(spec.seed, device)
    else:
        file = check_weight_files(directory)
        source = WeightFiles(file, tensors_by_file(file), str(model.base_model_prefix))
    _quantise(model, spec, source, device, parts)
    fill(model, source, device, parts)
    if division is not None and group is not None:
        connect(model, division, group)
    return model


def whole_and_parts(spec: ModelSpec, group: RankGroup) -> tuple[nn.Module, Mapping[str, Part]]:
    """Return the undivided model, without data, and this rank's parts of its weights by name.

    Raises LoadError as `divide`.
    """
    directory = Path(spec.path)
    with quiet_loading():
        config = read_config(directory, trust_remote_code=spec.trust_remote_code)
        model = skeleton(config, spec)
    step = expert_step(weight_format(spec))
    return model, divide(model, directory / "config.json", group, step).parts


def _quantise(
    model: nn.Module,
    spec: ModelSpec,
    source: WeightSource,
    device: str,
    parts: Mapping[str, Any],
) -> None:
    """Give the model the quantised linears of its files, or those that `spec` asks for."""
    file = Path(spec.path, "config.json")
    found, form = quantisation(Path(spec.path)), weight_format(spec)
    if form is None:
        return
    if form.of_experts:
        _quantise_experts(model, spec, source, device, parts)
        return
    linears: LinearSource
    if found is None or not isinstance(source, WeightFiles):
        linears = _Rounded(source, form, model)
    else:
        linears = _Stored(source, found, file)
    try:
        num_replaced = replace_linears(model, linears, parts, device, rounds_inputs(spec, model))
    except NoPart as error:
        raise LoadError(file, f"cannot be divided: {error}") from error
    if not num_replaced and found is None:
        raise LoadError(file, f"quantize {spec.quantize}: this kind of model has no linears for it")
    if not num_replaced:
        raise LoadError(file, "speaks of quantised weights, and the files have none")
    _tell_of_others(model, spec)


def _quantise_experts(
    model: nn.Module,
    spec: ModelSpec,
    source: WeightSource,
    device: str,
    parts: Mapping[str, Any],
) -> None:
    """Give the model the quantised experts of its files, or random ones."""
    file = Path(spec.path, "config.json")
    read = dummy_experts(spec.seed)
    if isinstance(source, WeightFiles):
        read = stored_experts(source.tensor)
    try:
        num_replaced = replace_experts(model, read, parts, device)
    except BadExperts as error:
        raise LoadError(file, str(error)) from error
    if not num_replaced:
        raise LoadError(file, "speaks of quantised experts, and this kind of model has none")


def _tell_of_others(model: Any, spec: ModelSpec) -> None:
    """Log linears of the layers that are left as they are: the plan counts them as quantised."""
    head = model.get_output_embeddings()
    plain = {
        name: each
        for name, each in model.named_modules()
        if type(each) is nn.Linear and each is not head
    }
    if plain:
        size = sum(each.weight.nbytes for each in plain.values()) / 2**30
        message = "%s: %d linears are not quantised, such as %s: up to %.2f GiB more than planned"
        logger.warning(message, spec.name, len(plain), min(plain), size)


@dataclass(frozen=True, slots=True)
class _Stored:
    """Linears as the checkpoint has them."""

    files: WeightFiles
    found: Mapping[str, Any]  # quantization_config
    file: Path

    def linear(self, name: str, linear: nn.Linear) -> QuantisedWeight | None:
        try:
            weight = read_weight(lambda ending: self.files.tensor(f"{name}.{ending}"), self.found)
        except (BadTensors, ValueError, RuntimeError, IndexError) as error:
            raise LoadError(self.file, f"{name}: {error}") from error
        shape = tuple(linear.weight.shape)
        if weight is not None and weight.shape != shape:
            message = f"{name} has shape {weight.shape}, config.json asks for {shape}"
            raise LoadError(self.file, message)
        return weight


@dataclass(frozen=True, slots=True)
class _Rounded:
    """Linears of an ordinary checkpoint; an output layer tied to the embeddings stays as it is."""

    source: WeightSource
    form: WeightFormat
    model: Any

    def linear(self, name: str, linear: nn.Linear) -> QuantisedWeight | None:
        is_head = linear is self.model.get_output_embeddings()
        is_tied = is_head and linear.weight is self.model.get_input_embeddings().weight
        if is_tied or linear.in_features % 2:
            return None
        weight = f"{name}.weight"
        whole: Tensor = self.source.parts((weight,), linear.weight, None)[weight]
        return quantised(whole, QUANTIZE_HEAD[self.form.kind] if is_head else self.form)
