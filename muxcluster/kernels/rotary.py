"""Rotary position embedding in place; plain-torch twin of the Triton kernel."""

from dataclasses import dataclass

import torch
from torch import Tensor

from muxcluster.kernels.layout import check_heads
from muxcluster.kernels.on_gpu import triton_on_gpu


@dataclass(frozen=True, slots=True, eq=False)
class HeadNorms:
    """RMSNorm of every query and key head before it is turned (Qwen3)."""

    # query, key: factors [head_dim]
    query: Tensor
    key: Tensor
    eps: float  # added to the mean square


@triton_on_gpu
def rotary(
    query: Tensor,
    key: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    norms: HeadNorms | None = None,
) -> None:
    """Turn pairs of `query`'s and `key`'s elements by their token's angles (RoFormer, Su 2021).

    query: [tokens, heads, head_dim]; key: [tokens, kv_heads, head_dim]; both changed in place.
    cos, sin: [tokens, rotary_dim], as transformers' rotary modules give them. Only the first
        rotary_dim // 2 columns are read, one entry a pair; the others repeat them. (Cohere's module
        repeats each entry at once instead: give it `cos[:, ::2].repeat(1, 2)`.)
    interleaved: pairs are neighbours, 2i and 2i + 1 (GLM, Cohere, GPT-J), not i and
        i + rotary_dim // 2 (Llama, NeoX).
    norms: heads are normalised first, with the roundings of `add_rms_norm`; the result is rounded
        to the tensors' type before it is turned. Needs rotary_dim == head_dim. None: no norm.

    Elements from rotary_dim on stay as they are. Computed in fp32 and rounded once; transformers'
    Llama rounds both products too, so 16-bit results may differ in the last bit.

    Raises ValueError for wrong shapes, types or strides, before anything is written.
    """
    check_rotary(query, key, cos, sin)
    if norms is not None:
        check_norms(query, cos, norms)
        _normalise(query, norms.query, norms.eps)
        _normalise(key, norms.key, norms.eps)
    pairs = cos.shape[1] // 2
    cos, sin = (table[:, None, :pairs].float() for table in (cos, sin))
    for tensor in (query, key):
        part = tensor[..., : 2 * pairs]
        if interleaved:
            _turn(part[..., ::2], part[..., 1::2], cos, sin)
        else:
            _turn(part[..., :pairs], part[..., pairs:], cos, sin)


def _normalise(heads: Tensor, weight: Tensor, eps: float) -> None:
    """RMSNorm over the last axis of [tokens, heads, head_dim], in place."""
    wide = heads.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    torch.mul(weight, normed.to(heads.dtype), out=heads)


def _turn(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn the pairs (first, second), views [tokens, heads, pairs], in place."""
    x, y = first.float(), second.float()
    turned = x * cos - y * sin
    second.copy_(y * cos + x * sin)
    first.copy_(turned)


def check_rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Raise ValueError unless the arguments are what `rotary` says."""
    check_heads("query", query)
    check_heads("key", key)
    tokens, _, head_dim = query.shape
    if key.dtype != query.dtype or key.shape[::2] != (tokens, head_dim):
        raise ValueError(
            "query and key must agree but in heads, "
            f"got {query.dtype} {tuple(query.shape)} and {key.dtype} {tuple(key.shape)}"
        )
    for name, table in (("cos", cos), ("sin", sin)):
        if (
            table.dtype not in (torch.float32, query.dtype)
            or table.dim() != 2
            or table.shape != (tokens, cos.shape[1])
            or table.shape[1] % 2
            or table.shape[1] > head_dim
            or table.stride(1) != 1
        ):
            raise ValueError(
                f"{name} must be fp32 or {query.dtype} [{tokens}, rotary_dim], rotary_dim even and "
                f"at most {head_dim}, columns contiguous; "
                f"got {table.dtype} {tuple(table.shape)} with strides {table.stride()}"
            )


def check_norms(query: Tensor, cos: Tensor, norms: HeadNorms) -> None:
    """Raise ValueError unless `norms` fits heads that are turned whole."""
    head_dim = query.shape[2]
    if cos.shape[1] != head_dim:
        raise ValueError(
            f"norms need tables of all {head_dim} elements of a head, got {cos.shape[1]}"
        )
    for name, weight in (("query", norms.query), ("key", norms.key)):
        if weight.shape != (head_dim,) or weight.dtype != query.dtype or weight.stride(0) != 1:
            raise ValueError(
                f"the {name} norm's weight must be {query.dtype} [{head_dim}], "
                f"got {weight.dtype} {tuple(weight.shape)} with strides {weight.stride()}"
            )
