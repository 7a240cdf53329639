"""Rotary position embedding in place: a program turns some heads of one token, query's or key's."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.rotary import check_rotary
from kernels.triton_ops.specimen import Specimen

_MAX_HEADS = 16


@triton.jit
def _turn_heads(
    heads_of_token,  # one token's [num_heads, head_dim], changed in place
    head_stride,
    num_heads,
    first_head,
    cos,  # fp32 [1, BLOCK_PAIRS]
    sin,
    INTERLEAVED: tl.constexpr,
    NUM_PAIRS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
):
    head = (first_head + tl.arange(0, BLOCK_HEADS)).to(tl.int64)[:, None]  # heads may lie far apart
    dtype = heads_of_token.dtype.element_ty
    if INTERLEAVED:
        column = tl.arange(0, 2 * BLOCK_PAIRS)[None, :]
        inside = (head < num_heads) & (column < 2 * NUM_PAIRS)
        place = heads_of_token + head * head_stride + column
        both = tl.load(place, mask=inside, other=0.0).to(tl.float32)
        x, y = tl.split(tl.reshape(both, (BLOCK_HEADS, BLOCK_PAIRS, 2)))
        turned = tl.join(x * cos - y * sin, y * cos + x * sin)
        turned = tl.reshape(turned, (BLOCK_HEADS, 2 * BLOCK_PAIRS))
        tl.store(place, turned.to(dtype), mask=inside)
    else:
        column = tl.arange(0, BLOCK_PAIRS)[None, :]
        inside = (head < num_heads) & (column < NUM_PAIRS)
        place = heads_of_token + head * head_stride + column
        x = tl.load(place, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(place + NUM_PAIRS, mask=inside, other=0.0).to(tl.float32)
        tl.store(place, (x * cos - y * sin).to(dtype), mask=inside)
        tl.store(place + NUM_PAIRS, (y * cos + x * sin).to(dtype), mask=inside)


@triton.jit
def _rotary(
    query,  # [tokens, query_heads, head_dim], changed in place
    key,  # [tokens, key_heads, head_dim], changed in place
    cos,  # [tokens, at least NUM_PAIRS]
    sin,
    query_heads,
    key_heads,
    query_token_stride,
    query_head_stride,
    key_token_stride,
    key_head_stride,
    cos_stride,
    sin_stride,
    INTERLEAVED: tl.constexpr,
    NUM_PAIRS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    pair = tl.arange(0, BLOCK_PAIRS)[None, :]
    inside = pair < NUM_PAIRS
    c = tl.load(cos + token * cos_stride + pair, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + token * sin_stride + pair, mask=inside, other=0.0).to(tl.float32)
    query_groups = tl.cdiv(query_heads, BLOCK_HEADS)
    if group < query_groups:
        _turn_heads(
            query + token * query_token_stride,
            query_head_stride,
            query_heads,
            group * BLOCK_HEADS,
            c,
            s,
            INTERLEAVED,
            NUM_PAIRS,
            BLOCK_HEADS,
            BLOCK_PAIRS,
        )
    else:
        _turn_heads(
            key + token * key_token_stride,
            key_head_stride,
            key_heads,
            (group - query_groups) * BLOCK_HEADS,
            c,
            s,
            INTERLEAVED,
            NUM_PAIRS,
            BLOCK_HEADS,
            BLOCK_PAIRS,
        )


def rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> None:
    """As `kernels.rotary.rotary`; one launch turns both."""
    check_rotary(query, key, cos, sin)
    num_pairs = cos.shape[1] // 2
    tokens, query_heads, _ = query.shape
    key_heads = key.shape[1]
    if not tokens * (query_heads + key_heads) * num_pairs:
        return
    block_heads = min(_MAX_HEADS, triton.next_power_of_2(max(query_heads, key_heads)))
    groups = triton.cdiv(query_heads, block_heads) + triton.cdiv(key_heads, block_heads)
    _rotary[(tokens, groups)](
        query,
        key,
        cos,
        sin,
        query_heads,
        key_heads,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        cos.stride(0),
        sin.stride(0),
        INTERLEAVED=interleaved,
        NUM_PAIRS=num_pairs,
        BLOCK_HEADS=block_heads,
        BLOCK_PAIRS=triton.next_power_of_2(num_pairs),
    )


def _specimen(name: str, dtype: str, tables: str, rotary_dim: int, interleaved: bool) -> Specimen:
    heads = ("query_heads", "key_heads")
    of_tokens = ("query_token_stride", "key_token_stride", "cos_stride", "sin_stride")
    strides = (*of_tokens, "query_head_stride", "key_head_stride")
    constants = {
        "INTERLEAVED": interleaved,
        "NUM_PAIRS": rotary_dim // 2,
        "BLOCK_HEADS": _MAX_HEADS,
        "BLOCK_PAIRS": triton.next_power_of_2(rotary_dim // 2),
    }
    return Specimen(
        name=f"rotary {name}",
        kernel=_rotary,
        signature={
            **dict.fromkeys(("query", "key"), f"*{dtype}"),
            **dict.fromkeys(("cos", "sin"), f"*{tables}"),
            **dict.fromkeys((*heads, *strides), "i32"),
            **dict.fromkeys(constants, "constexpr"),
        },
        constants=constants,
        divisible=frozenset(("query", "key", "cos", "sin", *strides)),
    )


SPECIMENS = (
    _specimen("bf16 d128", "bf16", "bf16", 128, False),
    _specimen("bf16 d80", "bf16", "bf16", 80, False),
    _specimen("fp16 d256 fp32 tables", "fp16", "fp32", 256, False),
    _specimen("bf16 d128 interleaved", "bf16", "bf16", 128, True),
    _specimen("bf16 d64 interleaved", "bf16", "fp32", 64, True),
)
"""Half rotation and interleaved; d is the rotary dimension."""
