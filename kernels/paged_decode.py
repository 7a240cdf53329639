"""Attention of one new token a sequence over its blocks; plain-torch twin of the Triton kernel."""

import torch
from torch import Tensor

from kernels.layout import check_attention, check_index, check_table, half_rows, token_positions

GROUP_BYTES = 1 << 20
"""Gathered K and V of a group of rows stay below this, so that they are read from cache."""


def paged_decode(
    query: Tensor,
    pool: Tensor,
    table: Tensor,
    slots: Tensor,
    lengths: Tensor,
    from_right: Tensor,
    *,
    block_tokens: int,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """Attention output [rows, heads, head_dim] in the query's type.

    query: [rows, heads, head_dim]; heads is a multiple of kv_heads (grouped-query attention).
    pool: uint8 [num_blocks, block_bytes], the new token's K and V already written.
    table: int32 [max_seqs, kv_heads, max_columns], one layer's view.
    slots: int32 or int64 [rows]. lengths: int32 or int64 [rows], tokens of context including
        the current one; a row of length 0 yields zeros.
    from_right: bool [max_seqs].
    scale: factor on the scores. sliding_window: only the last so many keys are seen.
    soft_cap: scores s become soft_cap * tanh(s / soft_cap).

    Only columns in use are read, and what a block holds outside of the sequence's own tokens
    (even NaN) does not matter. Arithmetic is in fp32 at least.
    Raises ValueError for wrong shapes, types or strides.
    """
    check_table(table, from_right)
    check_attention(query, table, sliding_window, soft_cap)
    rows, heads, head_dim = query.shape
    check_index("slots", slots, rows)
    check_index("lengths", lengths, rows)
    halves = half_rows(pool, query.dtype, block_tokens, head_dim)
    num_kv_heads = table.shape[1]
    grouped = query.reshape(rows, num_kv_heads, heads // num_kv_heads, head_dim)
    output = torch.zeros_like(grouped)
    slots, lengths = slots.long(), lengths.long()
    begins = torch.zeros_like(lengths)
    if sliding_window is not None:
        begins = (lengths - sliding_window).clamp_(min=0)
    first = begins // block_tokens
    widths = ((lengths + block_tokens - 1) // block_tokens - first).tolist()
    column_bytes = 2 * num_kv_heads * block_tokens * head_dim * query.element_size()
    for chosen in _groups(widths, GROUP_BYTES // column_bytes):
        members = torch.tensor(chosen)
        narrowest, widest = widths[chosen[0]], widths[chosen[-1]]
        columns = first[members, None] + torch.arange(widest)
        right = from_right[slots[members], None]
        positions = token_positions(columns, right, block_tokens)
        hidden = (positions < begins[members, None]) | (positions >= lengths[members, None])
        blocks = _blocks(table[slots[members]], columns, lengths[members, None] - 1, block_tokens)
        tail = (narrowest - 1) * block_tokens
        output[members] = _attend(
            grouped[members], halves, blocks, hidden, tail, scale=scale, soft_cap=soft_cap
        ).to(query.dtype)
    return output.view(rows, heads, head_dim)


def _groups(widths: list[int], budget: int) -> list[list[int]]:
    """Rows of similar width (columns to read), narrow first, so that a padded group stays within
    `budget` columns; rows of width 0 are left out."""
    groups: list[list[int]] = []
    for row in sorted((row for row, width in enumerate(widths) if width), key=widths.__getitem__):
        if groups and (len(groups[-1]) + 1) * widths[row] <= budget:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _blocks(tables: Tensor, columns: Tensor, newest: Tensor, block_tokens: int) -> Tensor:
    """Block ids [rows, kv_heads, columns]; columns past a row's last one repeat it."""
    used = torch.minimum(columns, newest // block_tokens)
    return tables.gather(2, used.unsqueeze(1).expand(-1, tables.shape[1], -1)).long()


def _attend(
    query: Tensor,
    halves: Tensor,
    blocks: Tensor,
    hidden: Tensor,
    tail: int,
    *,
    scale: float,
    soft_cap: float | None,
) -> Tensor:
    """Attention [rows, kv_heads, group, head_dim] of rows padded to one width.

    query: as the result. halves: the pool's K and V halves. blocks: [rows, kv_heads, columns].
    hidden: bool [rows, tokens], keys not to be seen. tail: tokens before it were all written by
    their own sequence, so only later values can be NaN.
    """
    rows, num_kv_heads, _ = blocks.shape
    ids = 2 * blocks.reshape(-1)
    gathered = halves.index_select(0, torch.cat((ids, ids + 1)))
    keys, values = gathered.view(2, rows * num_kv_heads, -1, query.shape[-1])
    if keys.dtype.itemsize < 4:
        query, keys, values = query.float(), keys.float(), values.float()
    scores = torch.bmm(query.flatten(0, 1) * scale, keys.transpose(1, 2))
    if soft_cap is not None:
        scores = torch.tanh(scores / soft_cap) * soft_cap
    scores.view(rows, -1, scores.shape[-1]).masked_fill_(hidden.unsqueeze(1), -torch.inf)
    values.view(rows, num_kv_heads, -1, values.shape[-1])[:, :, tail:].masked_fill_(
        hidden[:, None, tail:, None], 0.0
    )
    return torch.bmm(scores.softmax(-1), values).view(query.shape)
