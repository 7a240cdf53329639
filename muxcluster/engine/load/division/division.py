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
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from muxcluster.core.errors import LoadError
from muxcluster.engine.forward.latents import Expansion
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
    BY_HEAD,
    BY_INPUT,
    BY_OUTPUT,
    EXPERTS,
    IGNORED,
    ONCE,
    PACKED,
    PAIRED,
    QKV,
    TRANSPOSED,
    plan_of,
)
from muxcluster.placement.shapes.division import (
    expert_bounds,
    feature_bounds,
    fills_all,
    part_bounds,
)

_OF_EXPERTS = frozenset({BY_OUTPUT, BY_INPUT, PACKED, PAIRED, TRANSPOSED})
_LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")

Foreign = Any  # a module or configuration of transformers, with attributes unknown to mypy


@dataclass(frozen=True, slots=True)
class Division:
    """How a model's weights are divided over ranks."""

    parts: Mapping[str, Part]  # of parameters by name; what is not named is whole
    summed: tuple[str, ...]  # linears whose results the ranks add
    experts: tuple[str, ...]  # modules of experts, whose results the ranks add
    once: tuple[str, ...]  # parameters that are zero on all ranks but the first
    # modules that own divided linears, attention among them, and which of them read numbers of
    # heads from their configuration
    owners: Mapping[str, bool]
    heads: RankHeads
    # embeddings, head: by name, "" where not divided
    embeddings: str
    head: str
    vocab_size: int  # rows of the whole head


def bounds(length: int, group: RankGroup) -> tuple[int, int]:
    """Return first and end of this rank's part of `length` rows; the last may be short or empty."""
    return part_bounds(length, group.rank, group.size)


def divide(model: Foreign, config_file: Path, group: RankGroup, expert_step: int) -> Division:
    """Return how `model`, whole and perhaps without data, is divided by its plan.

    expert_step: as of `placement.shapes.division`.

    Raises LoadError naming `config_file` if it has no plan, a plan that we cannot carry out, heads
    that cannot be divided evenly, or fewer features than ranks.
    """
    try:
        return _divide(model, group, expert_step)
    except _CannotDivide as refusal:
        message = f"cannot run on {group.size} GPUs: {refusal}"
        raise LoadError(config_file, message) from refusal


def connect(model: Foreign, division: Division, group: RankGroup) -> None:
    """Put the layers that talk to other ranks in place; `model` holds this rank's parts already."""
    for name, reads_config in division.owners.items():
        division.heads.tell(model.get_submodule(name), reads_config=reads_config)
    for name in division.once if group.rank else ():
        model.get_parameter(name).zero_()
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
        model.set_submodule(division.head, GatheredLinear(part, division.vocab_size, group))
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.out_features, module.in_features = module.weight.shape


class _CannotDivide(Exception):
    """The message says why, after "cannot run on so many GPUs"."""


def _divide(model: Foreign, group: RankGroup, expert_step: int) -> Division:
    heads = _heads_of(model, group)
    parts: dict[str, Part] = {}
    owners: dict[str, bool] = {}
    summed, experts, once = [], [], []
    for name, module, style in _planned(model):
        if style == EXPERTS:
            experts.append(name)
        elif style == ONCE:
            once.append(name)
        elif isinstance(module, nn.Parameter):
            parts[name] = _parameter_part(name, module, style, heads, group, expert_step)
        else:
            owner = name.rpartition(".")[0]
            owners[owner] = owners.get(owner, False) or style == QKV
            part = parts[f"{name}.weight"] = _linear_part(name, module, style, heads, group)
            if part.axis:
                summed.append(name)
            elif module.bias is not None:
                parts[f"{name}.bias"] = part
    _check_experts(model, experts, {*parts, *once})
    embeddings, head = _vocabulary(model, group)
    for name in filter(None, (embeddings, head)):
        for weight, each in model.get_submodule(name).named_parameters():
            parts[f"{name}.{weight}"] = Part(0, (bounds(len(each), group),))
    rows = len(model.get_output_embeddings().weight) if head else 0
    modules = (tuple(summed), tuple(experts), tuple(once))
    return Division(parts, *modules, owners, heads, embeddings, head, rows)


def _heads_of(model: Foreign, group: RankGroup) -> RankHeads:
    config = model.config.get_text_config()
    num_heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
    if getattr(config, "kv_lora_rank", None):
        kv_heads = num_heads  # latents have none: every head reads them
    if num_heads % group.size:
        raise _CannotDivide(f"{num_heads} heads cannot be divided among them")
    return RankHeads(num_heads, kv_heads, group.rank, group.size)


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
    is_linear = type(module) in (nn.Linear, Expansion)
    if style not in (BY_OUTPUT, BY_INPUT, PACKED, QKV) or not is_linear:
        raise _unknown(name, module, style)
    axis = 1 if style == BY_INPUT else 0
    length = module.weight.shape[axis]
    if style == QKV:
        return heads.qkv_part(length)
    if style == BY_OUTPUT and heads.are_keys_or_values(name):
        return heads.kv_part(length)
    length = length // 2 if style == PACKED else length
    _check_all_filled(name, length, ("outputs", "inputs")[axis], group)
    return _halves(axis, length, feature_bounds(length, group.rank, group.size), style)


def _parameter_part(
    name: str,
    parameter: nn.Parameter,
    style: str,
    heads: RankHeads,
    group: RankGroup,
    expert_step: int,
) -> Part:
    """Return the part of a parameter that is in no linear: of attention, or of merged experts."""
    if style == BY_HEAD and parameter.ndim == 1:
        return Part.of_heads(heads.query_heads, 1)
    return _expert_part(name, parameter, style, group, expert_step)


def _expert_part(name: str, weight: nn.Parameter, style: str, group: RankGroup, step: int) -> Part:
    """Return the part of the merged weight of all experts, [experts, outputs, inputs], or as its
    style says; of a bias [experts, outputs] if it is PAIRED."""
    least = 2 if style == PAIRED else 3
    if weight.ndim not in (least, 3) or style not in _OF_EXPERTS:
        raise _unknown(name, weight, style)
    axis = {BY_INPUT: 2, PAIRED: weight.ndim - 1}.get(style, 1)
    length = weight.shape[axis] // (2 if style in (PACKED, PAIRED) else 1)
    kind = "inputs" if style in (BY_INPUT, TRANSPOSED) else "outputs"
    _check_all_filled(name, length, kind, group)
    first, end = expert_bounds(length, group.rank, group.size, step)
    if style == PAIRED:
        return Part(axis, ((2 * first, 2 * end),))
    return _halves(axis, length, (first, end), style)


def _halves(axis: int, length: int, mine: tuple[int, int], style: str) -> Part:
    """Return these features, of both halves of `length` each if they are packed."""
    first, end = mine
    return Part(axis, (mine, (length + first, length + end)) if style == PACKED else (mine,))


def _check_all_filled(name: str, length: int, kind: str, group: RankGroup) -> None:
    if not fills_all(length, group.size):
        raise _CannotDivide(f"{name} has {length} {kind}, which leaves a rank without any")


def _unknown(name: str, module: Foreign, style: str) -> _CannotDivide:
    kind = type(module).__name__
    return _CannotDivide(
        f"its plan wants {name} ({kind}) divided as {style!r}, which is not supported"
    )


def _check_experts(model: Foreign, experts: list[str], divided: Set[str]) -> None:
    """Refuse experts with weights that are whole: the ranks would add them several times."""
    for name in experts:
        for weight, _ in model.get_submodule(name).named_parameters():
            if f"{name}.{weight}" not in divided:
                raise _CannotDivide(f"its plan leaves {name}.{weight} whole")


def _vocabulary(model: Foreign, group: RankGroup) -> tuple[str, str]:
    """Return the names of embeddings and output layer, "" where they are whole."""
    inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    # embeddings of a class of its own may scale rows, a head of one may do anything
    embeddings = _divisible(model, inputs, isinstance(inputs, nn.Embedding), group)
    head = _divisible(model, outputs, type(outputs) is nn.Linear, group)
    # layers that share a weight are both divided or neither
    is_tied = getattr(outputs, "weight", None) is inputs.weight  # embedding models have no head
    is_half = is_tied and not (embeddings and head)
    return ("", "") if is_half else (embeddings, head)


def _divisible(model: Foreign, module: Foreign, is_known: bool, group: RankGroup) -> str:
    """Return the name of a vocabulary module that every rank can have rows of; "": none."""
    if not is_known or not fills_all(module.weight.shape[0], group.size):
        return ""
    names: Iterator[str] = (name for name, each in model.named_modules() if each is module)
    return next(names)
