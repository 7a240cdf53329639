"""Rotary position embedding in place; plain-torch twin of the Triton kernel."""

import torch
from torch import Tensor

from kernels.layout import check_heads
from kernels.on_gpu import triton_kernel


def rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> None:
    """Turn pairs of `query`'s and `key`'s elements by their token's angles (RoFormer, Su 2021).

    query: [tokens, heads, head_dim]; key: [tokens, kv_heads, head_dim]; both changed in place.
    cos, sin: [tokens, rotary_dim], as transformers' rotary modules give them. Only the first
        rotary_dim // 2 columns are read, one entry a pair; the others repeat them. (Cohere's module
        repeats each entry at once instead: give it `cos[:, ::2].repeat(1, 2)`.)
    interleaved: pairs are neighbours, 2i and 2i + 1 (GLM, Cohere, GPT-J), not i and
        i + rotary_dim // 2 (Llama, NeoX).

    Elements from rotary_dim on stay as they are. Computed in fp32 and rounded once; transformers'
    Llama rounds both products too, so 16-bit results may differ in the last bit.

    Raises ValueError for wrong shapes, types or strides, before anything is written.
    """
    if query.is_cuda:
        triton_kernel("rotary")(query, key, cos, sin, interleaved)
        return
    check_rotary(query, key, cos, sin)
    pairs = cos.shape[1] // 2
    cos, sin = (table[:, None, :pairs].float() for table in (cos, sin))
    for tensor in (query, key):
        part = tensor[..., : 2 * pairs]
        if interleaved:
            _turn(part[..., ::2], part[..., 1::2], cos, sin)
        else:
            _turn(part[..., :pairs], part[..., pairs:], cos, sin)


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
