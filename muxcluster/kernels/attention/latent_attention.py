"""Attention over latents in the pool (multi-head latent attention, DeepSeek-V2, § 2.1).

A token's latent has `width` elements, its rotary key the last of them, and all query heads see the
same one: scores are products of queries and whole latents, the result a sum of their first
`value_width` elements. In the pool it is cut into one piece for each of the table's KV heads; the
first half of a piece lies where a key would, the other half where its value would. So whatever
writes, moves or copies keys and values does so with latents.
"""

import torch
from torch import Tensor

from muxcluster.kernels.cpu.latent_rows import MOST_SCORES, LatentPlan, attended_to, gathered
from muxcluster.kernels.layout import (
    check_heads,
    check_index,
    check_table,
    half_rows,
    token_positions,
)
from muxcluster.kernels.on_gpu import triton_on_gpu


@triton_on_gpu
def latent_attention(
    query: Tensor,
    pool: Tensor,
    table: Tensor,
    table_rows: Tensor,
    query_offsets: Tensor,
    starts: Tensor,
    from_right: Tensor,
    *,
    block_tokens: int,
    value_width: int,
    scale: float,
    is_decode: bool = False,
) -> Tensor:
    """Return causal attention [tokens, heads, value_width] in the query's type.

    query: [tokens, heads, width], the rows' new tokens one after the other, in latents' space.
    pool: uint8 [num_blocks, block_bytes]; the new tokens' latents are in it already, in the query's
        type.
    table: int32 [max_seqs, kv_heads, max_columns], one layer's view. table_rows: int [rows].
    query_offsets: int [rows + 1]; row i's queries are query[offsets[i] : offsets[i + 1]].
    starts: int [rows], position of each row's first query. A query at a negative position sees
        nothing and yields zeros: rows that fill up a batch of fixed size.
    from_right: bool [max_seqs]. scale: factor on the scores.
    is_decode: each row has one query.

    Only columns in use are read, and what a block holds outside of the sequence's own tokens (even
    NaN) does not matter. Arithmetic is in fp32 at least. Raises ValueError for wrong shapes, types
    or strides.
    """
    check_latent_attention(query, table, table_rows, query_offsets, starts, from_right, value_width)
    tokens, heads, width = query.shape
    halves = half_rows(pool, query.dtype, block_tokens, width // (2 * table.shape[1]))
    if is_decode:
        plan = LatentPlan(
            table.unsqueeze(1),
            table_rows,
            starts + 1,
            from_right,
            block_tokens=block_tokens,
            token_bytes=width * query.element_size(),
        )
        return plan.attend(query, halves, 0, value_width=value_width, scale=scale).to(query.dtype)
    output = query.new_zeros((tokens, heads, value_width))
    bounds = query_offsets.tolist()
    if bounds[0] != 0 or bounds[-1] != tokens or bounds != sorted(bounds):
        raise ValueError(f"query_offsets must rise from 0 to {tokens}, got {bounds}")
    for row, (table_row, start) in enumerate(
        zip(table_rows.tolist(), starts.tolist(), strict=True)
    ):
        first, stop = bounds[row], bounds[row + 1]
        end = start + stop - first
        if first == stop or end <= 0:
            continue
        if end > table.shape[2] * block_tokens:
            raise ValueError(f"a row ends at {end}, beyond its table of {table.shape[2]} columns")
        columns = torch.arange(-(-end // block_tokens)).unsqueeze(0)
        right = from_right[table_row].view(1, 1)
        places = token_positions(columns, right, block_tokens)
        blocks = table[table_row, :, : columns.shape[1]].unsqueeze(0)
        latents = gathered(halves, blocks, places >= end)
        output[first:stop] = _causal(query[first:stop], latents, places, start, value_width, scale)
    return output


def latent_halves(latents: Tensor, kv_heads: int) -> tuple[Tensor, Tensor]:
    """Return what is stored of latents in the place of keys, and of values.

    latents: [tokens, width], contiguous. Returns two views [tokens, kv_heads, width / (2 *
    kv_heads)].
    """
    tokens, width = latents.shape
    pieces = latents.view(tokens, kv_heads, 2, width // (2 * kv_heads))
    return pieces[:, :, 0], pieces[:, :, 1]


def check_latent_attention(
    query: Tensor,
    table: Tensor,
    table_rows: Tensor,
    query_offsets: Tensor,
    starts: Tensor,
    from_right: Tensor,
    value_width: int,
) -> None:
    """Raise ValueError unless the arguments are as `latent_attention` says; reads no values."""
    check_table(table, from_right)
    check_heads("query", query)
    width, kv_heads = query.shape[2], table.shape[1]
    if width % (2 * kv_heads):
        raise ValueError(f"latents of {width} elements cannot be stored in {kv_heads} KV heads")
    if not 1 <= value_width <= width:
        raise ValueError(f"value_width must be at least 1 and at most {width}, got {value_width}")
    rows = table_rows.shape[0] if table_rows.dim() else -1
    check_index("table_rows", table_rows, rows)
    check_index("starts", starts, rows)
    check_index("query_offsets", query_offsets, rows + 1)


def _causal(
    query: Tensor, latents: Tensor, places: Tensor, start: int, value_width: int, scale: float
) -> Tensor:
    """Return attention [tokens, heads, value_width] of one sequence to itself, from `start` on.

    latents: [1, tokens, width], at positions `places`, int64 [1, tokens].
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    latents = latents.to(wide)
    heads, width = query.shape[1:]
    step = max(1, MOST_SCORES // (heads * latents.shape[1]))
    attended = query.new_empty((*query.shape[:2], value_width))
    for first in range(0, len(query), step):
        some = query[first : first + step].to(wide)
        last = torch.arange(start + first, start + first + len(some))
        hidden = places.unsqueeze(1) > last.repeat_interleave(heads).view(1, -1, 1)
        found = attended_to(some.reshape(1, -1, width), latents, hidden, value_width, scale)
        attended[first : first + step] = found.view(len(some), heads, value_width)
    return attended
