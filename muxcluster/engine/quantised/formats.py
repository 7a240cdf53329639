"""How checkpoints store quantised linears: each format's tensors, as a `QuantisedWeight`.

Which format a linear has shows in the names of its tensors, so lists of what a checkpoint leaves
as it is need not be read.
"""

from collections.abc import Callable, Mapping
from math import gcd
from typing import Any

import torch
from torch import Tensor

from muxcluster.engine.quantised.weight import QuantisedWeight, packed

# Reads the tensor of a linear with this ending, None: there is none. Raises LoadError.
Read = Callable[[str], Tensor | None]

# AutoAWQ: the i-th 4 bits of an int32 are of output _AWQ_ORDER[i] of its eight.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_ONES = {4: 0x11111111, 8: 0x01010101}  # 1 in every field of so many bits


class BadTensors(ValueError):
    """Tensors of a linear do not fit together; the message says which."""


def read_weight(read: Read, found: Mapping[str, Any]) -> QuantisedWeight | None:
    """Return the weight of one linear, None if it is stored as it is.

    found: the checkpoint's quantization_config, which `stored_format` accepts. Raises BadTensors.
    """
    method = found["quant_method"]
    if method == "awq":
        return _awq(read, _group(found))
    if method == "gptq":
        is_second = found.get("checkpoint_format") == "gptq_v2"
        return _gptq(read, int(found["bits"]), _group(found), is_second=is_second)
    if method != "fp8":
        return _compressed(read, next(iter(found["config_groups"].values()))["weights"])
    if read("weight_scale_inv") is None:
        return _whole(read, None)  # AutoFP8: one scale
    return _in_blocks(read, "weight_scale_inv", found.get("weight_block_size", (128, 128)))


def _group(found: Mapping[str, Any]) -> int:
    """Return the inputs that share a scale, 0: all of a row."""
    return max(0, int(found.get("group_size", 128)))


def _awq(read: Read, group: int) -> QuantisedWeight | None:
    """AutoAWQ's "gemm" (Lin et al. 2023).

    qweight int32 [in, out / 8], qzeros int32 [groups, out / 8], scales [groups, out].
    """
    qweight = read("qweight")
    if qweight is None:
        return None
    scales = _needed(read, "scales").float().T
    values = _awq_nibbles(qweight).T
    qzeros = read("qzeros")
    zeros = None if qzeros is None else _awq_nibbles(qzeros).T.float()
    return _weight(values, scales, zeros, group, is_packed=True)


def _awq_nibbles(words: Tensor) -> Tensor:
    """Return uint8 [rows, 8 * columns] of int32 [rows, columns]."""
    nibbles = _fields(words, 4)
    places = torch.tensor(_AWQ_ORDER, device=words.device).argsort()
    return nibbles[..., places].flatten(-2)


def _gptq(read: Read, bits: int, group: int, *, is_second: bool) -> QuantisedWeight | None:
    """GPTQ's (Frantar et al. 2022).

    qweight int32 [in * bits / 32, out], qzeros int32 [groups, out * bits / 32], scales [groups,
    out]. g_idx [in] has the group of each input, which need not be in order. is_second: zero points
    are stored as they are; before version 2 of the format, a whole word was less by 1 in each.
    """
    qweight = read("qweight")
    if qweight is None:
        return None
    scales = _needed(read, "scales").float().T
    values = _fields(qweight.T, bits).flatten(-2)
    words = _needed(read, "qzeros")
    if not is_second:
        words = words + _ONES[bits]  # in 32 bits: what was borrowed from the next one comes back
    zeros = _fields(words, bits).flatten(-2).T.float()
    order = None
    indices = read("g_idx")
    if indices is not None and not bool((indices.diff() >= 0).all()):
        sizes = indices.long().bincount()
        if len(indices) != values.shape[1] or bool((sizes != sizes[0]).any()):
            raise BadTensors("g_idx has groups of different sizes")
        order = indices.long().argsort(stable=True)
        values = values[:, order]
    if bits == 8:
        whole = (values.short() - 128).to(torch.int8)
        return _weight(whole, scales, zeros - 128, group, order=order)
    return _weight(values, scales, zeros, group, is_packed=True, order=order)


def _compressed(read: Read, weights: Mapping[str, Any]) -> QuantisedWeight | None:
    """compressed-tensors: `weight_packed` of 4 or 8 bits, or `weight` in int8 or float8_e4m3."""
    words = read("weight_packed")
    is_symmetric = weights.get("symmetric", True)
    if words is None:
        if weights.get("strategy") == "block":
            return _in_blocks(read, "weight_scale", weights["block_structure"])
        return _whole(read, None if is_symmetric else "weight_zero_point", _size(weights))
    bits = int(weights.get("num_bits", 8))
    num_out, num_in = (int(each) for each in _needed(read, "weight_shape"))
    if words.shape[1] != -(-num_in * bits // 32):
        raise BadTensors(f"weight_packed {tuple(words.shape)} is not [{num_out}, {num_in}]")
    values = _fields(words, bits).flatten(-2)[:num_out, :num_in]
    middle = 2 ** (bits - 1)
    zeros = None
    if not is_symmetric:
        points = _needed(read, "weight_zero_point")
        if points.dtype == torch.int32:  # packed along the outputs
            zeros = _fields(points.T, bits).flatten(-2).T[:num_out].float()
        else:
            zeros = points.float() + middle
    scales = _needed(read, "weight_scale").float()
    if bits == 8:
        whole = (values.short() - middle).to(torch.int8)
        shifted = None if zeros is None else zeros - middle
        return _weight(whole, scales, shifted, _size(weights))
    return _weight(values, scales, zeros, _size(weights), is_packed=True)


def _size(weights: Mapping[str, Any]) -> int:
    """Return the inputs that share a scale, 0: all of a row."""
    is_grouped = weights.get("strategy", "group") == "group" and weights.get("group_size")
    return int(weights["group_size"]) if is_grouped else 0


def _whole(read: Read, zero_point: str | None, group: int = 0) -> QuantisedWeight | None:
    """`weight` of 8 bits with `weight_scale`, by tensor, row or group."""
    scales = read("weight_scale")
    if scales is None:
        return None
    zeros = None if zero_point is None else _needed(read, zero_point).float()
    return _weight(_needed(read, "weight"), scales.float(), zeros, group)


def _in_blocks(read: Read, name: str, block: Any) -> QuantisedWeight | None:
    """float8_e4m3 `weight`, and one scale a block of [rows, columns] (DeepSeek-V3, § 3.3)."""
    scale = read(name)
    if scale is None:
        return None
    values = _of_8_bits(_needed(read, "weight"))
    num_out, num_in = values.shape
    rows, columns = (int(each) for each in block)
    if tuple(scale.shape) != (-(-num_out // rows), -(-num_in // columns)):
        raise BadTensors(f"{name} has shape {tuple(scale.shape)}, weight {tuple(values.shape)}")
    group = gcd(columns, num_in)
    by_row = scale.float().repeat_interleave(rows, 0)[:num_out]
    by_group = by_row.repeat_interleave(columns // group, 1)[:, : num_in // group]
    return QuantisedWeight(values, by_group.contiguous(), None, group)


def _weight(
    values: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    group: int,
    *,
    is_packed: bool = False,
    order: Tensor | None = None,
) -> QuantisedWeight:
    """values: one a element, [out, in]. scales, zeros: of groups of inputs, rows (0), or of all."""
    num_out, num_in = values.shape
    if not is_packed:
        values = _of_8_bits(values)
    elif num_in % 2:
        raise BadTensors(f"{num_in} inputs of 4 bits are no whole bytes")
    if scales.ndim < 2:
        scales = scales.reshape(-1, 1)
        zeros = None if zeros is None else zeros.reshape(-1, 1)
    num_groups = scales.shape[1]
    if num_groups * (group or num_in) != num_in or scales.shape[0] not in (1, num_out):
        raise BadTensors(
            f"scales of shape {tuple(scales.shape)} for a weight [{num_out}, {num_in}]"
        )
    if zeros is not None:
        if zeros.shape != scales.shape:
            raise BadTensors(f"zero points {tuple(zeros.shape)}, scales {tuple(scales.shape)}")
        zeros = zeros.expand(num_out, -1).contiguous()
        if bool((zeros == (8 if is_packed else 0)).all()):
            zeros = None
    return QuantisedWeight(
        packed(values) if is_packed else values.contiguous(),
        scales.expand(num_out, -1).contiguous(),
        zeros,
        num_in // num_groups,
        order,
    )


def _of_8_bits(values: Tensor) -> Tensor:
    if values.dtype not in (torch.int8, torch.float8_e4m3fn):
        raise BadTensors(f"weight has type {values.dtype}, expected int8 or float8_e4m3fn")
    return values


def _fields(words: Tensor, bits: int) -> Tensor:
    """Return uint8 [..., columns, 32 / bits] of int32 [..., columns], the lowest bits first."""
    shifts = torch.arange(0, 32, bits, device=words.device, dtype=torch.int32)
    fields: Tensor = (words.unsqueeze(-1) >> shifts) & (2**bits - 1)
    return fields.to(torch.uint8)


def _needed(read: Read, name: str) -> Tensor:
    tensor = read(name)
    if tensor is None:
        raise BadTensors(f"{name} is missing")
    return tensor
