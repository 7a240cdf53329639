"""Divides weights over ranks: which part of which weight, and the model of one rank's parts.

The plan is transformers' own, `base_model_tp_plan` of the model's configuration, or ours
(plans.py). The vocabulary is divided, too, as newer versions of the library do; an output layer
tied to the embeddings has the same part of them.
"""

# The library can also carry the plan out (`from_pretrained` with a plan). We do that ourselves,
# because the library's way needs `accelerate`, changed its interface within the versions we
# support, draws no dummy weights, makes every divided weight a DTensor that is unwrapped again in
# each call, hides its collectives in forward hooks, and refuses KV heads fewer than ranks; we need
# the collectives in one class that a CUDA graph can capture.

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from muxcluster.core.errors import LoadError
from muxcluster.engine.load.division.group import RankGroup
from muxcluster.engine.load.division.heads import RankHeads
from muxcluster.engine.load.division.layers import (
    GatheredLinear,
    SummedEmbedding,
    SummedExperts,
    SummedLinear,
)
from muxcluster.engine.load.division.part import Part
from muxcluster.engine.load.division.plans import (
    BY_INPUT,
    BY_OUTPUT,
    EXPERTS,
    IGNORED,
    PACKED,
    plan_of,
)
from muxcluster.placement.shapes.division import fills_all, part_bounds

_LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")

Foreign = Any  # a module or configuration of transformers, with attributes unknown to mypy


@dataclass(frozen=True, slots=True)
class Division:
    """How a model's weights are divided over ranks."""

    parts: Mapping[str, Part]  # of parameters by name; what is not named is whole
    summed: tuple[str, ...]  # linears whose results the ranks add
    experts: tuple[str, ...]  # modules of experts, whose results the ranks add
    owners: frozenset[str]  # modules that own divided linears, attention among them
    heads: RankHeads
    # embeddings, head: by name, "" where not divided
    embeddings: str
    head: str


def bounds(length: int, group: RankGroup) -> tuple[int, int]:
    """Return first and end of this rank's part of `length` rows; the last may be short or empty."""
    return part_bounds(length, group.rank, group.size)


def divide(model: Foreign, config_file: Path, group: RankGroup) -> Division:
    """Return how `model`, whole and perhaps without data, is divided by its plan.

    Raises LoadError naming `config_file` if it has no plan, a plan that we cannot carry out, heads
    that cannot be divided evenly, or fewer features than ranks.
    """
    try:
        return _divide(model, group)
    except _CannotDivide as refusal:
        message = f"cannot run on {group.size} GPUs: {refusal}"
        raise LoadError(config_file, message) from refusal


def connect(model: Foreign, division: Division, group: RankGroup) -> None:
    """Put the layers that talk to other ranks in place; `model` holds this rank's parts already."""
    for name in division.owners:
        division.heads.tell(model.get_submodule(name))
    for name in division.summed:
        model.set_submodule(name, SummedLinear(model.get_submodule(name), group))
    for name in division.experts:
        model.set_submodule(name, SummedExperts(model.get_submodule(name), group))
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


class _CannotDivide(Exception):
    """The message says why, after "cannot run on so many GPUs"."""


def _divide(model: Foreign, group: RankGroup) -> Division:
    config = model.config.get_text_config()
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    heads = RankHeads(config.num_attention_heads, kv_heads, group.rank, group.size)
    if heads.num_heads % group.size:
        raise _CannotDivide(f"{heads.num_heads} heads cannot be divided among them")
    parts: dict[str, Part] = {}
    summed, experts, owners = [], [], set()
    for name, module, style in _planned(model):
        if style == EXPERTS:
            experts.append(name)
        elif isinstance(module, nn.Parameter):
            parts[name] = _expert_part(name, module, style, group)
        else:
            owners.add(name.rpartition(".")[0])
            part = parts[f"{name}.weight"] = _linear_part(name, module, style, heads, group)
            if part.axis:
                summed.append(name)
            elif module.bias is not None:
                parts[f"{name}.bias"] = part
    _check_experts(model, experts, parts)
    embeddings, head = _vocabulary(model, group)
    parts |= {f"{name}.weight": Part(0, (mine,)) for name, mine in _rows(model, embeddings, group)}
    for name, mine in _rows(model, head, group):
        parts[f"{name}.weight"] = Part(0, (mine,))
        if model.get_submodule(name).bias is not None:
            parts[f"{name}.bias"] = Part(0, (mine,))
    return Division(
        parts, tuple(summed), tuple(experts), frozenset(owners), heads, embeddings, head
    )


def _planned(model: Foreign) -> Iterator[tuple[str, Foreign, str]]:
    """Yield name, module or parameter, and style of each entry of the plan, layer by layer."""
    config = model.config.get_text_config()
    plan = plan_of(config)
    body = model.base_model
    prefix = "" if body is model else f"{model.base_model_prefix}."
    has_any = False
    for name, each in (*body.named_modules(), *body.named_parameters()):
        style = plan.get(_LAYER_NUMBER.sub("*", name))
        if style is not None and style not in IGNORED:
            has_any = True
            yield prefix + name, each, style
    if not has_any:
        kind = model.config.model_type
        raise _CannotDivide(f"transformers has no tensor-parallel plan for {kind!r}, nor have we")


def _linear_part(
    name: str, module: Foreign, style: str, heads: RankHeads, group: RankGroup
) -> Part:
    """Return the part of a linear's weight that this rank has."""
    if style not in (BY_OUTPUT, BY_INPUT) or type(module) is not nn.Linear:
        raise _unknown(name, module, style)
    axis = 0 if style == BY_OUTPUT else 1
    length = module.weight.shape[axis]
    if axis == 0 and heads.are_keys_or_values(name):
        return heads.kv_part(length)
    return Part(axis, (_features(name, length, ("outputs", "inputs")[axis], group),))


def _expert_part(name: str, weight: nn.Parameter, style: str, group: RankGroup) -> Part:
    """Return the part of the merged weight of all experts, [experts, outputs, inputs]."""
    if weight.ndim != 3 or style not in (BY_OUTPUT, BY_INPUT, PACKED):
        raise _unknown(name, weight, style)
    if style == BY_INPUT:
        return Part(2, (_features(name, weight.shape[2], "inputs", group),))
    if style == BY_OUTPUT:
        return Part(1, (_features(name, weight.shape[1], "outputs", group),))
    half = weight.shape[1] // 2
    first, end = _features(name, half, "outputs", group)
    return Part(1, ((first, end), (half + first, half + end)))


def _features(name: str, length: int, kind: str, group: RankGroup) -> tuple[int, int]:
    if not fills_all(length, group.size):
        raise _CannotDivide(f"{name} has {length} {kind}, which leaves a rank without any")
    return bounds(length, group)


def _unknown(name: str, module: Foreign, style: str) -> _CannotDivide:
    kind = type(module).__name__
    return _CannotDivide(
        f"its plan wants {name} ({kind}) divided as {style!r}, which is not supported"
    )


def _check_experts(model: Foreign, experts: list[str], parts: Mapping[str, Part]) -> None:
    """Refuse experts with weights that are whole: the ranks would add them several times."""
    for name in experts:
        for weight, _ in model.get_submodule(name).named_parameters():
            if f"{name}.{weight}" not in parts:
                raise _CannotDivide(f"its plan leaves {name}.{weight} whole")


def _vocabulary(model: Foreign, group: RankGroup) -> tuple[str, str]:
    """Return the names of embeddings and output layer, "" where they are whole."""
    inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    embeddings = _divisible(model, inputs, nn.Embedding, group)
    head = _divisible(model, outputs, nn.Linear, group)
    # layers that share a weight are both divided or neither
    is_half = outputs.weight is inputs.weight and not (embeddings and head)
    return ("", "") if is_half else (embeddings, head)


def _divisible(model: Foreign, module: Foreign, kind: type[Foreign], group: RankGroup) -> str:
    """Return the name of a vocabulary module that every rank can have rows of; "": none."""
    # Of another class it may do more than look up rows.
    if type(module) is not kind or not fills_all(module.weight.shape[0], group.size):
        return ""
    names: Iterator[str] = (name for name, each in model.named_modules() if each is module)
    return next(names)


def _rows(model: Foreign, name: str, group: RankGroup) -> list[tuple[str, tuple[int, int]]]:
    """Return name and this rank's rows of a vocabulary module, nothing where it is whole."""
    return [(name, bounds(len(model.get_submodule(name).weight), group))] if name else []
