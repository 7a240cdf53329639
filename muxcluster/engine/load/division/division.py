"""Divides weights over ranks: which axis of which weight, and the model of one rank's parts.

The plan is transformers' own: `base_model_tp_plan` of the model's configuration. The vocabulary is
divided, too, as newer versions of the library do; an output layer tied to the embeddings has the
same part of them.
"""

# The library can also carry the plan out (`from_pretrained` with a plan). We do that ourselves,
# because the library's way needs `accelerate`, changed its interface within the versions we
# support, draws no dummy weights, makes every divided weight a DTensor that is unwrapped again in
# each call, and hides its collectives in forward hooks; we need them in one class that a CUDA graph
# can capture.

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from muxcluster.core.errors import LoadError
from muxcluster.engine.load.division.group import RankGroup
from muxcluster.engine.load.division.layers import GatheredLinear, SummedEmbedding, SummedLinear

_BY_OUTPUT, _BY_INPUT = "colwise", "rowwise"
_WHOLE = frozenset({"replicate", "replicated", "replicated_with_grad_allreduce"})
_LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")

Foreign = Any  # a model or configuration of transformers, with attributes that mypy does not know


@dataclass(frozen=True, slots=True)
class Division:
    """How a model's weights are divided over ranks."""

    # the axis along which a parameter is divided, by name; what is not named is whole
    axes: Mapping[str, int]
    summed: tuple[str, ...]  # modules whose results the ranks add
    # embeddings, head: by name, "" where not divided
    embeddings: str
    head: str


def bounds(length: int, group: RankGroup) -> tuple[int, int]:
    """Return first and end of this rank's part of `length` rows; the last may be short or empty."""
    rows = -(-length // group.size)
    return min(group.rank * rows, length), min((group.rank + 1) * rows, length)


def divide(model: Foreign, config_file: Path, group: RankGroup) -> Division:
    """Return how `model`, whole and perhaps without data, is divided by its plan.

    Raises LoadError naming `config_file` if it has no plan, a plan that we cannot carry out, or
    heads or features that cannot be divided evenly.
    """
    _check_heads(model.config.get_text_config(), config_file, group.size)
    axes: dict[str, int] = {}
    summed = []
    for name, module, style in _planned(model, config_file, group.size):
        axis = axes[f"{name}.weight"] = _axis(name, module, style, config_file, group.size)
        if axis:
            summed.append(name)
        elif module.bias is not None:
            axes[f"{name}.bias"] = 0
    embeddings = _divisible(model, model.get_input_embeddings(), nn.Embedding, group)
    head = _divisible(model, model.get_output_embeddings(), nn.Linear, group)
    if _is_tied(model) and not (embeddings and head):
        embeddings = head = ""
    axes |= {f"{name}.weight": 0 for name in (embeddings, head) if name}
    if head and model.get_output_embeddings().bias is not None:
        axes[f"{head}.bias"] = 0
    return Division(axes, tuple(summed), embeddings, head)


def connect(model: Foreign, division: Division, group: RankGroup) -> None:
    """Put the layers that talk to other ranks in place; `model` holds this rank's parts already."""
    for name in division.summed:
        model.set_submodule(name, SummedLinear(model.get_submodule(name), group))
    if division.embeddings:
        part = model.get_submodule(division.embeddings)
        first, _ = bounds(part.num_embeddings, group)
        model.set_submodule(division.embeddings, SummedEmbedding(part, first, group))
    if division.head:
        part = model.get_submodule(division.head)
        model.set_submodule(division.head, GatheredLinear(part, part.out_features, group))
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.out_features, module.in_features = module.weight.shape


def _planned(model: Foreign, config_file: Path, size: int) -> Iterator[tuple[str, Foreign, str]]:
    """Yield name, module and style of each entry of the plan, layer by layer."""
    plan = getattr(model.config.get_text_config(), "base_model_tp_plan", None)
    if not plan:
        kind = model.config.model_type
        reason = f"cannot run on {size} GPUs: transformers has no tensor-parallel plan for {kind!r}"
        raise LoadError(config_file, reason)
    body = model.base_model
    prefix = "" if body is model else f"{model.base_model_prefix}."
    for name, module in body.named_modules():
        style = plan.get(_LAYER_NUMBER.sub("*", name))
        if style is not None and style not in _WHOLE:
            yield prefix + name, module, style


def _axis(name: str, module: Foreign, style: str, config_file: Path, size: int) -> int:
    """Return the axis along which a linear's weight is divided."""
    if style not in (_BY_OUTPUT, _BY_INPUT) or type(module) is not nn.Linear:
        kind = type(module).__name__
        reason = f"cannot run on {size} GPUs: its plan wants {name} ({kind}) divided as {style!r}"
        raise LoadError(config_file, f"{reason}, which is not supported")
    axis = 0 if style == _BY_OUTPUT else 1
    if module.weight.shape[axis] % size:
        reason = f"{name} has {module.weight.shape[axis]} {('outputs', 'inputs')[axis]}"
        raise LoadError(config_file, f"cannot run on {size} GPUs: {reason}, not a multiple of it")
    return axis


def _check_heads(config: Foreign, config_file: Path, size: int) -> None:
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    if heads % size or kv_heads % size:
        reason = f"{heads} heads and {kv_heads} KV heads cannot be divided among them"
        raise LoadError(config_file, f"cannot run on {size} GPUs: {reason}")


def _is_tied(model: Foreign) -> bool:
    """Return whether the layers share a weight: both are divided or neither."""
    is_same: bool = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    return is_same


def _divisible(model: Foreign, module: Foreign, kind: type[Foreign], group: RankGroup) -> str:
    """Return the name of a vocabulary module that every rank can have rows of; "": none."""
    # Else its class may do more than look up rows.
    if type(module) is not kind:
        return ""
    num_rows = module.weight.shape[0]
    if -(-num_rows // group.size) * (group.size - 1) >= num_rows:
        return ""
    names: Iterator[str] = (name for name, each in model.named_modules() if each is module)
    return next(names)
