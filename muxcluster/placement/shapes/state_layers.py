"""Layers that keep a state of fixed size in place of keys and values, as a config.json has them.

What is needed of a model type, known to us or not: the sizes of its state (Mamba's or gated linear
attention's, in the spellings below) and which of its layers have keys and values: `layer_types` or
`layers_block_type`, `attn_layer_indices`, or `attn_layer_period` with its offset; none where there
is no `num_attention_heads`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muxcluster.placement.shapes.config_values import ShapeError, first_integer, integer, listed

ATTENTION = frozenset({"full_attention", "sliding_attention", "chunked_attention", "attention"})
_RECURRENT = frozenset({"mamba", "mamba2", "linear_attention"})
_HYBRID = "hybrid"
_KINDS = ("layer_types", "layers_block_type")
_PARALLEL = frozenset({"falcon_h1"})  # types whose layers all have both
# Types without attention, even if their files have numbers of heads.
_PURE = frozenset({"mamba", "mamba2", "falcon_mamba"})
_ALL_RECURRENT = frozenset({"bamba"})  # types without attention if no layer is listed

_STATE = ("state_size", "mamba_d_state", "ssm_state_size")
_KERNEL = ("conv_kernel", "mamba_d_conv")
_EXPAND = ("expand", "mamba_expand")
_GROUPS = ("n_groups", "mamba_n_groups", "mamba_ngroups")
_INNER = ("mamba_d_ssm", "d_inner")
_HEADS = ("mamba_n_heads", "mamba_num_heads")
_HEAD = ("mamba_d_head", "mamba_head_dim")
_RANK = ("time_step_rank", "mamba_dt_rank")
_LINEAR = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim")
_LINEAR_SIZES = (*_LINEAR, "linear_value_head_dim", "linear_conv_kernel_dim")


@dataclass(frozen=True, slots=True)
class Recurrence:
    """One recurrent layer: parameters of its matrices, and elements of one sequence's state."""

    params: int
    elements: int


def state_fields(config: Mapping[str, Any], kind: str, layers: int, hidden: int) -> dict[str, int]:
    """Fields of `ModelShape` about such layers; empty for a model of attention alone.

    Raises ShapeError if a size or the place of attention is not said.
    """
    layer = _mamba(config, hidden) or _linear(config, hidden)
    if layer is None:
        _refuse_unknown(config)
        return {}
    num_attention, num_states = _counts(config, kind, layers)
    return {
        "num_state_layers": num_states,
        "num_keyless_layers": layers - num_attention,
        "state_params": layer.params,
        "state_size": num_states * layer.elements,
    }


def _refuse_unknown(config: Mapping[str, Any]) -> None:
    other = sorted({str(each) for each in listed(config, "layer_types")} - ATTENTION)
    if other:
        raise ShapeError(f"layer_types has {', '.join(other)}: the size of its state is not said")


def _mamba(config: Mapping[str, Any], hidden: int) -> Recurrence | None:
    """Sizes of Mamba (https://arxiv.org/abs/2312.00752), or of Mamba 2 if there are groups."""
    state, kernel = first_integer(config, _STATE), first_integer(config, _KERNEL)
    if state is None and kernel is None:
        return None
    if state is None or kernel is None:
        missing = (_STATE if state is None else _KERNEL)[0]
        raise ShapeError(f"state-space layers: {missing} is missing, under any of its names")
    inner = _inner_size(config, hidden)
    groups = first_integer(config, _GROUPS)
    if groups is None:
        rank = _rank(config, hidden)
        inside = kernel + 2 * rank + 3 * state
        return Recurrence(inner * (3 * hidden + inside), inner * (state + kernel))
    heads = first_integer(config, (*_HEADS, "n_mamba_heads", "num_heads"))
    if heads is None:
        raise ShapeError("state-space layers: mamba_n_heads is missing, under any of its names")
    mixed = inner + 2 * groups * state
    params = hidden * (2 * inner + mixed - inner + heads) + mixed * kernel + inner * hidden
    return Recurrence(params, inner * state + mixed * kernel)


def _inner_size(config: Mapping[str, Any], hidden: int) -> int:
    given = first_integer(config, _INNER)
    if given is not None:
        return given
    heads, head = first_integer(config, _HEADS), first_integer(config, _HEAD)
    if heads is not None and head is not None:
        return heads * head
    return (first_integer(config, _EXPAND) or 2) * hidden


def _rank(config: Mapping[str, Any], hidden: int) -> int:
    """Return Mamba's default if the file says "auto"."""
    fixed = {key: config[key] for key in _RANK if config.get(key, "auto") != "auto"}
    return first_integer(fixed, _RANK) or -(-hidden // 16)


def _linear(config: Mapping[str, Any], hidden: int) -> Recurrence | None:
    """Sizes of gated linear attention with a delta rule (https://arxiv.org/abs/2412.06464)."""
    if not any(key in config for key in _LINEAR):
        return None
    missing = [key for key in _LINEAR_SIZES if key not in config]
    if missing:
        raise ShapeError(f"linear attention: {missing[0]} is missing")
    key_heads, value_heads, key, value, kernel = (integer(config, k, 1) for k in _LINEAR_SIZES)
    keys, values = key_heads * key, value_heads * value
    mixed = 2 * keys + values
    params = hidden * (mixed + 2 * values + 2 * value_heads) + mixed * kernel
    return Recurrence(params, value_heads * key * value + mixed * kernel)


def _counts(config: Mapping[str, Any], kind: str, layers: int) -> tuple[int, int]:
    """(layers with keys and values, layers with a state)."""
    if kind in _PURE or "num_attention_heads" not in config:
        return 0, layers
    if kind in _PARALLEL:
        return layers, layers
    for key in _KINDS:
        if key in config:
            return _of_kinds(config, key, layers)
    num_attention = _placed(config, kind, layers)
    return num_attention, layers - num_attention


def _of_kinds(config: Mapping[str, Any], key: str, layers: int) -> tuple[int, int]:
    kinds = [str(each) for each in listed(config, key)]
    if len(kinds) != layers:
        raise ShapeError(f"{key} has {len(kinds)} entries, expected one for each of {layers}")
    other = sorted(set(kinds) - ATTENTION - _RECURRENT - {_HYBRID})
    if other:
        raise ShapeError(f"{key} has {', '.join(other)}: only attention and states are supported")
    both = kinds.count(_HYBRID)
    return sum(each in ATTENTION for each in kinds) + both, sum(
        each in _RECURRENT for each in kinds
    ) + both


def _placed(config: Mapping[str, Any], kind: str, layers: int) -> int:
    if "attn_layer_indices" in config or kind in _ALL_RECURRENT:
        places = {each for each in listed(config, "attn_layer_indices") if each in range(layers)}
        return len(places)
    if "attn_layer_period" in config:
        period, offset = integer(config, "attn_layer_period", 1), _offset(config, "attn")
        return sum(layer % period == offset for layer in range(layers))
    raise ShapeError(
        "state-space layers beside attention: which are which is not said: expected layer_types, "
        "attn_layer_indices or attn_layer_period"
    )


def _offset(config: Mapping[str, Any], of: str) -> int:
    return integer(config, f"{of}_layer_offset", 0)
