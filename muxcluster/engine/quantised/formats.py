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


class BadTensors(ValueError):
    """Tensors of a linear do not fit together; the message says which."""


def read_weight(read: Read, found: Mapping[str, Any]) -> QuantisedWeight | None:
    """Return the weight of one linear, None if it is stored as it is.

    found: the checkpoint's quantization_config. Raises BadTensors.
    """
    method = found["quant_method"]
    if method == "awq":
        return _awq(read)
    if method == "gptq":
        return _gptq(
            read, int(found["bits"]), is_second=found.get("checkpoint_format") == "gptq_v2"
        )
    if method == "fp8":
        return _in_blocks(read, "weight_scale_inv", found.get("weight_block_size") or (128, 128))
    return _compressed(read, _weights_of(found))


def _weights_of(found: Mapping[str, Any]) -> Mapping[str, Any]:
    weights: Mapping[str, Any] = next(iter(found["config_groups"].values()))["weights"]
    return weights


def _awq(read: Read) -> QuantisedWeight | None:
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
    return _weight(values, scales, zeros, is_packed=True)


def _awq_nibbles(words: Tensor) -> Tensor:
    """Return uint8 [rows, 8 * columns] of int32 [rows, columns]."""
    nibbles = _fields(words, 4)
    places = torch.tensor(_AWQ_ORDER, device=words.device).argsort()
    return nibbles[..., places].flatten(-2)


def _gptq(read: Read, bits: int, *, is_second: bool) -> QuantisedWeight | None:
    """GPTQ's (Frantar et al. 2022).

    qweight int32 [in * bits / 32, out], qzeros int32 [groups, out * bits / 32], scales [groups,
    out]. g_idx [in] has the group of each input, which need not be in order.
    is_second: zero points are stored as they are; before version 2 of the format, less one.
    """
    qweight = read("qweight")
    if qweight is None:
        return None
    scales = _needed(read, "scales").float().T
    values = _fields(qweight.T, bits).flatten(-2)
    zeros = _fields(_needed(read, "qzeros"), bits).flatten(-2).T.float() + (0 if is_second else 1)
    order = None
    indices = read("g_idx")
    if indices is not None and not bool((indices.diff() >= 0).all()):
        order = indices.long().argsort(stable=True)
        values = values[:, order]
    if bits == 8:
        return _weight((values.short() - 128).to(torch.int8), scales, zeros - 128, order=order)
    return _weight(values, scales, zeros, is_packed=True, order=order)


def _compressed(read: Read, weights: Mapping[str, Any]) -> QuantisedWeight | None:
    """compressed-tensors: `weight_packed` of 4 or 8 bits, or `weight` in int8 or float8_e4m3."""
    scale = read("weight_scale")
    if scale is None:
        return None
    words = read("weight_packed")
    if words is None:
        if weights.get("strategy") == "block":
            return _in_blocks(read, "weight_scale", weights["block_structure"])
        values = _needed(read, "weight")
        point = None if weights.get("symmetric", True) else read("weight_zero_point")
        zeros = None if point is None else point.float()
        return _weight(values, scale.float(), zeros)
    bits = int(weights.get("num_bits", 4))
    num_out, num_in = (int(each) for each in _needed(read, "weight_shape"))
    values = _fields(words, bits).flatten(-2)[:num_out, :num_in]
    points = None if weights.get("symmetric", True) else read("weight_zero_point")
    # packed along the outputs, with the offset that makes them positive
    zeros = None if points is None else _fields(points.T, bits).flatten(-2).T[:num_out].float()
    if bits == 8:
        whole = (values.short() - 128).to(torch.int8)
        return _weight(whole, scale.float(), None if zeros is None else zeros - 128)
    return _weight(values, scale.float(), zeros, is_packed=True)


def _in_blocks(read: Read, name: str, block: Any) -> QuantisedWeight | None:
    """float8_e4m3 `weight`, and one scale a block of [rows, columns] (DeepSeek-V3, § 3.3)."""
    scale = read(name)
    if scale is None:
        return None
    values = _needed(read, "weight")
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
    *,
    is_packed: bool = False,
    order: Tensor | None = None,
) -> QuantisedWeight:
    """values: one a element, [out, in]. scales, zeros: of groups, rows, or of all."""
    num_out, num_in = values.shape
    if scales.ndim < 2:
        scales = scales.reshape(-1, 1)
        zeros = None if zeros is None else zeros.reshape(-1, 1)
    num_groups = scales.shape[1]
    if num_groups == 0 or num_in % num_groups or scales.shape[0] not in (1, num_out):
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
