"""Causal attention of whole prompts to their own keys and values; nothing is read from a pool.

On a GPU it is torch's FlashAttention for sequences of different lengths
(`torch.nn.attention.varlen`, from torch 2.11 on); on the CPU, where that has no kernel, it is
`scaled_dot_product_attention`, sequence by sequence.
"""

import inspect
import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention

from muxcluster.kernels.cpu.sinks import share_of_keys
from muxcluster.kernels.layout import check_heads

# Queries handled at once where a mask is needed: bounds the mask and skips unseen keys.
TILE_TOKENS = 256

_MAX_HEAD_DIM = 256
# From torch 2.12 on groups of query heads are asked for; before, the kernel just took them.
_KNOWS_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters

# Most by which 16-bit attention of values near 1 may differ from fp32's in the check below.
_TOLERANCE = 0.05

logger = logging.getLogger(__name__)


def prompt_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    offsets: Tensor,
    max_tokens: int,
    *,
    scale: float,
    sliding_window: int | None = None,
) -> Tensor:
    """Attention output [tokens, heads, head_dim] in the query's type.

    query: [tokens, heads, head_dim]; key, value: [tokens, kv_heads, head_dim], the sequences one
        after the other, each from its first token on.
    offsets: int32 [sequences + 1]; sequence i's tokens are offsets[i] to offsets[i + 1].
    max_tokens: of the longest sequence, or more. scale, sliding_window: as in `paged_decode`.

    On a GPU nothing waits for the device, and `takes_prompts` must have said yes.
    Raises ValueError for wrong shapes, types or strides.
    """
    _check(query, key, value, offsets)
    if not query.is_cuda:
        return _on_cpu(query, key, value, offsets, scale, sliding_window)
    expands = _way(query.device, query.dtype, query.shape[1], key.shape[1], query.shape[2])
    return _on_gpu(
        query,
        key,
        value,
        offsets,
        max_tokens,
        scale=scale,
        sliding_window=sliding_window,
        expands=bool(expands),
    )


def takes_prompts(query: Tensor, key: Tensor, scale: float, soft_cap: float | None) -> bool:
    """Return whether `prompt_attention` can compute attention of such queries and keys.

    The first call for a shape on a GPU runs a check there, and waits for it.
    """
    if soft_cap is not None or scale <= 0:
        return False
    if not query.is_cuda:
        return True
    head_dim = query.shape[2]
    if query.dtype not in (torch.float16, torch.bfloat16):
        return False
    if head_dim % 8 or head_dim > _MAX_HEAD_DIM:
        return False
    return _way(query.device, query.dtype, query.shape[1], key.shape[1], head_dim) is not None


def _on_gpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    offsets: Tensor,
    max_tokens: int,
    *,
    scale: float,
    sliding_window: int | None,
    expands: bool,
) -> Tensor:
    """Run torch's kernel. expands: every query head gets keys and values of its own."""
    group = query.shape[1] // key.shape[1]
    if expands:
        key, value = (each.repeat_interleave(group, dim=1) for each in (key, value))
    options: dict[str, Any] = {
        "scale": scale,
        "window_size": (-1 if sliding_window is None else sliding_window - 1, 0),
    }
    if _KNOWS_GROUPS:
        options["enable_gqa"] = group > 1 and not expands
    sizes = (max_tokens, max_tokens)
    output: Any = varlen_attn(query, key, value, offsets, offsets, *sizes, **options)
    assert isinstance(output, Tensor), "torch returns more than was asked for"
    return output


@cache
@torch.no_grad()
def _way(
    device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int
) -> bool | None:
    """Return whether keys and values must be expanded to all query heads; None: unusable."""
    # Found by running it on random numbers: what torch's kernel takes depends on its version and
    # the GPU.
    reasons = []
    for expands in (False, True) if heads != kv_heads else (False,):
        try:
            difference = _difference(device, dtype, heads, kv_heads, head_dim, expands)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            reasons.append(f"{type(error).__name__}: {error}".splitlines()[0])
            continue
        if difference <= _TOLERANCE:
            return expands
        reasons.append(f"results differ by {difference:.2g}")
    logger.warning(
        "prompts of %d and %d heads of %d in %s use our own attention kernel, not torch's: %s",
        *(heads, kv_heads, head_dim, dtype, "; ".join(reasons)),
    )
    return None


def _difference(
    device: torch.device,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    expands: bool,
) -> float:
    """Return how far results on `device` are from fp32's, for sequences of 5 and 135 tokens."""
    generator = torch.Generator().manual_seed(0)
    ends, window, scale = (0, 5, 140), 70, head_dim**-0.5
    joint = torch.randn(140, heads + 2 * kv_heads, head_dim, generator=generator).to(device, dtype)
    query, key, value = torch.split(joint, [heads, kv_heads, kv_heads], dim=1)
    offsets = torch.tensor(ends, dtype=torch.int32, device=device)
    worst = 0.0
    for limit in (None, window):
        found = _on_gpu(
            query, key, value, offsets, 135, scale=scale, sliding_window=limit, expands=expands
        )
        for start, end in zip(ends, ends[1:], strict=False):
            own = [each[start:end].float() for each in (query, key, value)]
            expected = attend_whole(own[0], own[1], own[2], scale, limit)
            worst = max(worst, float((found[start:end] - expected).abs().max()))
    return worst


def _on_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    offsets: Tensor,
    scale: float,
    sliding_window: int | None,
) -> Tensor:
    ends = offsets.tolist()
    if ends[0] != 0 or ends[-1] != len(query) or ends != sorted(ends):
        raise ValueError(f"offsets must rise from 0 to {len(query)}, got {ends}")
    if len(ends) == 2:
        return attend_whole(query, key, value, scale, sliding_window)
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for start, end in zip(ends, ends[1:], strict=False):
        if start < end:
            own = slice(start, end)
            attended = attend_whole(query[own], key[own], value[own], scale, sliding_window)
            output[own] = attended
    return output


def attend_whole(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    sliding_window: int | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """As `prompt_attention` of one sequence, in plain torch. sinks: as in `paged_decode`."""
    tokens, heads, head_dim = query.shape
    kv_heads = key.shape[1]
    grouped = query.reshape(tokens, kv_heads, heads // kv_heads, head_dim).permute(1, 2, 0, 3)
    keys, values = (each.transpose(0, 1).unsqueeze(1) for each in (key, value))
    own = None if sinks is None else sinks.view(kv_heads, -1)
    attended = attend_grouped(grouped, keys, values, scale, sliding_window, None, own)
    return attended.permute(2, 0, 1, 3).flatten(1, 2)


def attend_grouped(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention; the last query is at the last key's position.

    query: [kv_heads, group, tokens, head_dim]. keys, values: [kv_heads, 1, context, head_dim].
    sinks: [kv_heads, group], as in `paged_decode`.
    """
    tokens, context = query.shape[2], keys.shape[2]
    is_plain = soft_cap is None and sinks is None
    if is_plain and tokens == context and (window is None or context <= window):
        keys, values = (x.expand(-1, query.shape[1], -1, -1) for x in (keys, values))
        return scaled_dot_product_attention(query, keys, values, is_causal=True, scale=scale)
    tiles = []
    for start in range(0, tokens, TILE_TOKENS):
        tile = query[:, :, start : start + TILE_TOKENS]
        low = context - tokens + start
        high = low + tile.shape[2]
        begin = 0 if window is None else max(0, low + 1 - window)
        keys_at = torch.arange(begin, high, device=query.device)
        distance = keys_at[low - begin :, None] - keys_at
        seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        span = slice(begin, high)
        own = (keys[:, :, span], values[:, :, span])
        tiles.append(_masked(tile, *own, seen, scale, soft_cap, sinks))
    return torch.cat(tiles, dim=2)


def _masked(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    seen: Tensor,
    scale: float,
    soft_cap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """As `attend_grouped` over the keys where `seen` (bool [tokens, context]) is True."""
    if soft_cap is None and sinks is None:
        keys, values = (x.expand(-1, query.shape[1], -1, -1) for x in (keys, values))
        return scaled_dot_product_attention(query, keys, values, attn_mask=seen, scale=scale)
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(wide) * scale) @ keys.to(wide).transpose(-1, -2)
    if soft_cap is not None:
        scores = torch.tanh(scores / soft_cap) * soft_cap
    scores = scores.masked_fill_(~seen, -torch.inf)
    if sinks is None:
        return (scores.softmax(-1) @ values.to(wide)).to(query.dtype)
    log_sums = scores.logsumexp(-1)
    attended = scores.sub_(log_sums.unsqueeze(-1)).exp_() @ values.to(wide)
    share = share_of_keys(log_sums, sinks.unsqueeze(-1))
    return attended.mul_(share.unsqueeze(-1)).to(query.dtype)


def _check(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_heads(name, tensor)
    tokens, heads, head_dim = query.shape
    is_alike = key.dtype == value.dtype == query.dtype and key.shape == value.shape
    if not is_alike or key.shape[::2] != (tokens, head_dim) or heads % key.shape[1]:
        raise ValueError(
            "query, key and value must agree but in heads, of which key has a divisor, "
            f"got {query.dtype} {tuple(query.shape)}, {key.dtype} {tuple(key.shape)} "
            f"and {value.dtype} {tuple(value.shape)}"
        )
    if offsets.dtype != torch.int32 or offsets.dim() != 1 or len(offsets) < 2:
        raise ValueError(
            f"offsets must be int32 [sequences + 1], got {offsets.dtype} {tuple(offsets.shape)}"
        )
