"""Rotary position embedding in place: a program turns some heads of one token, query's or key's.

Where heads are normalised first, the program that turns a head has all of it in registers, so the
norms of queries and keys cost no launch and no pass over memory.
"""

import triton
import triton.language as tl
from torch import Tensor

from muxcluster.kernels.rotary import HeadNorms, check_norms, check_rotary
from muxcluster.kernels.triton_ops.specimens.specimen import Specimen

_MAX_HEADS = 16


@triton.jit
def _scaled(x, factor, weight, dtype: tl.constexpr):
    """fp32 elements times fp32 factors and weights, rounded where transformers rounds."""
    x = (x * factor).to(dtype).to(tl.float32)
    return (x * weight).to(dtype).to(tl.float32)


@triton.jit
def _turn_heads(
    heads_of_token,  # one token's [num_heads, head_dim], changed in place
    head_stride,
    num_heads,
    first_head,
    cos,  # fp32 [1, BLOCK_PAIRS]
    sin,
    weight,  # [2 * NUM_PAIRS], of the norm
    eps,
    INTERLEAVED: tl.constexpr,
    HAS_NORMS: tl.constexpr,
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
        if HAS_NORMS:
            factor = tl.rsqrt(tl.sum(both * both, axis=1) / (2 * NUM_PAIRS) + eps)[:, None]
            weights = tl.load(weight + column, mask=column < 2 * NUM_PAIRS, other=0.0)
            both = _scaled(both, factor, weights.to(tl.float32), dtype)
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
        if HAS_NORMS:
            square = (tl.sum(x * x, axis=1) + tl.sum(y * y, axis=1)) / (2 * NUM_PAIRS)
            factor = tl.rsqrt(square + eps)[:, None]
            first = tl.load(weight + column, mask=column < NUM_PAIRS, other=0.0)
            second = tl.load(weight + NUM_PAIRS + column, mask=column < NUM_PAIRS, other=0.0)
            x = _scaled(x, factor, first.to(tl.float32), dtype)
            y = _scaled(y, factor, second.to(tl.float32), dtype)
        tl.store(place, (x * cos - y * sin).to(dtype), mask=inside)
        tl.store(place + NUM_PAIRS, (y * cos + x * sin).to(dtype), mask=inside)


@triton.jit(do_not_specialize=["query_heads", "key_heads"])
def _rotary(
    query,  # [tokens, query_heads, head_dim], changed in place
    key,  # [tokens, key_heads, head_dim], changed in place
    cos,  # [tokens, at least NUM_PAIRS]
    sin,
    query_weight,  # [2 * NUM_PAIRS], of the norm; any pointer without HAS_NORMS
    key_weight,
    query_heads,
    key_heads,
    query_token_stride,
    query_head_stride,
    key_token_stride,
    key_head_stride,
    cos_stride,
    sin_stride,
    eps,
    INTERLEAVED: tl.constexpr,
    HAS_NORMS: tl.constexpr,
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
            query_weight,
            eps,
            INTERLEAVED,
            HAS_NORMS,
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
            key_weight,
            eps,
            INTERLEAVED,
            HAS_NORMS,
            NUM_PAIRS,
            BLOCK_HEADS,
            BLOCK_PAIRS,
        )


def rotary(
    query: Tensor,
    key: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    norms: HeadNorms | None = None,
) -> None:
    """As `muxcluster.kernels.rotary.rotary`; one launch normalises and turns both."""
    check_rotary(query, key, cos, sin)
    if norms is not None:
        check_norms(query, cos, norms)
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
        query if norms is None else norms.query,
        key if norms is None else norms.key,
        query_heads,
        key_heads,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        cos.stride(0),
        sin.stride(0),
        0.0 if norms is None else norms.eps,
        INTERLEAVED=interleaved,
        HAS_NORMS=norms is not None,
        NUM_PAIRS=num_pairs,
        BLOCK_HEADS=block_heads,
        BLOCK_PAIRS=triton.next_power_of_2(num_pairs),
    )


def _specimen(
    name: str, dtype: str, tables: str, rotary_dim: int, interleaved: bool, norms: bool = False
) -> Specimen:
    weights = ("query_weight", "key_weight")
    heads = ("query_heads", "key_heads")
    of_tokens = ("query_token_stride", "key_token_stride", "cos_stride", "sin_stride")
    strides = (*of_tokens, "query_head_stride", "key_head_stride")
    constants = {
        "INTERLEAVED": interleaved,
        "HAS_NORMS": norms,
        "NUM_PAIRS": rotary_dim // 2,
        "BLOCK_HEADS": _MAX_HEADS,
        "BLOCK_PAIRS": triton.next_power_of_2(rotary_dim // 2),
    }
    return Specimen(
        name=f"rotary {name}",
        kernel=_rotary,
        signature={
            **dict.fromkeys(("query", "key", *weights), f"*{dtype}"),
            **dict.fromkeys(("cos", "sin"), f"*{tables}"),
            **dict.fromkeys((*heads, *strides), "i32"),
            "eps": "fp32",
            **dict.fromkeys(constants, "constexpr"),
        },
        constants=constants,
        divisible=frozenset(("query", "key", "cos", "sin", *weights, *strides)),
    )


# Half rotation and interleaved; d is the rotary dimension.
SPECIMENS = (
    _specimen("bf16 d128", "bf16", "bf16", 128, False),
    _specimen("bf16 d80", "bf16", "bf16", 80, False),
    _specimen("fp16 d256 fp32 tables", "fp16", "fp32", 256, False),
    _specimen("bf16 d128 interleaved", "bf16", "bf16", 128, True),
    _specimen("bf16 d64 interleaved", "bf16", "fp32", 64, True),
    _specimen("bf16 d128 norms", "bf16", "bf16", 128, False, norms=True),
    _specimen("fp16 d256 norms interleaved", "fp16", "fp16", 256, True, norms=True),
)
