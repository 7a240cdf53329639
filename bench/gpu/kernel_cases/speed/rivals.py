"""Other implementations of attention on contiguous or paged keys and values, timed beside ours."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from bench.gpu.kernel_cases.paged import Heads

Call = Callable[[], Any]
_PAGE_TOKENS = 16
_WORKSPACE_BYTES = 256 << 20


def contiguous(
    rows: int, tokens: int, length: int, heads: Heads, like: Tensor
) -> tuple[Tensor, ...]:
    """Random query [rows, heads, tokens, dim], key and value [rows, kv_heads, length, dim]."""
    shapes = ((heads.query, tokens), (heads.kv, length), (heads.kv, length))
    return tuple(
        torch.randn(rows, *shape, heads.dim, device=like.device).to(like.dtype) for shape in shapes
    )


def sdpa(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Call:
    """PyTorch's own choice of attention kernel."""
    grouped = query.shape[1] != key.shape[1]
    return lambda: scaled_dot_product_attention(
        query, key, value, is_causal=causal, enable_gqa=grouped
    )


def flex(query: Tensor, key: Tensor, value: Tensor) -> Call:
    """FlexAttention, compiled, causal; query and key of one length."""
    length = query.shape[2]
    mask = create_block_mask(_causal, None, None, length, length, device=query.device)
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(query, key, value, block_mask=mask, enable_gqa=True)


def _causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    del batch, head
    return query >= key


def flashinfer_decode(rows: int, length: int, heads: Heads, like: Tensor) -> dict[str, Call]:
    """FlashInfer's paged decode of `rows` queries over `length` tokens each; {} where it is
    not installed."""
    if find_spec("flashinfer") is None:
        return {}
    library = import_module("flashinfer")
    device = like.device
    pages = -(-length // _PAGE_TOKENS)
    cache = torch.randn(rows * pages, 2, _PAGE_TOKENS, heads.kv, heads.dim, device=device)
    cache = cache.to(like.dtype)
    query = torch.randn(rows, heads.query, heads.dim, device=device).to(like.dtype)
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    wrapper = library.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        torch.arange(rows + 1, dtype=torch.int32, device=device) * pages,
        torch.randperm(rows * pages, device=device).to(torch.int32),
        torch.full((rows,), length - (pages - 1) * _PAGE_TOKENS, dtype=torch.int32, device=device),
        heads.query,
        heads.kv,
        heads.dim,
        _PAGE_TOKENS,
        q_data_type=like.dtype,
        kv_data_type=like.dtype,
    )
    return {"flashinfer": lambda: wrapper.run(query, cache)}
