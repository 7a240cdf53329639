"""CPU path of decode attention: computes once what is the same in every layer."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from muxcluster.kernels.cpu.decode_rows import (
    Rows,
    by_width,
    groups,
    is_identity,
    ordered_like,
    softmax,
)
from muxcluster.kernels.layout import read_halves, token_positions

# Gathered K and V stay below this, so that they are still in the cache when they are read.
GROUP_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Some rows, padded to one width, and some KV heads of theirs."""

    rows: slice
    heads: slice
    ids: Tensor  # int32 [layers, 2 * rows * heads * columns], halves of the pool: all K, then all V
    bias: Tensor  # fp32 [rows * heads, 1, tokens], 0 where a key is seen and -inf where not
    # int64, gathered tokens (K and V alike) that their sequence never wrote: may be NaN
    unwritten: Tensor


class DecodePlan:
    """How the rows of one decode step attend, for all layers of a model."""

    def __init__(
        self,
        tables: Tensor,
        table_rows: Tensor,
        lengths: Tensor,
        from_right: Tensor,
        *,
        block_tokens: int,
        token_bytes: int,
        sliding_window: int | None = None,
        begins: Tensor | None = None,
    ) -> None:
        """tables: int32 [max_seqs, layers, kv_heads, max_columns]. table_rows, lengths: int [rows].

        token_bytes: K and V of one token and head. The rest as in `paged_decode`.
        """
        rows, widths, order = by_width(table_rows, lengths, sliding_window, block_tokens, begins)
        self._order = None if is_identity(order) else order
        self._has_empty = bool(widths) and widths[0] == 0
        budget = GROUP_BYTES // (block_tokens * token_bytes)
        self._parts = [
            part
            for some, widest in groups(widths, budget // tables.shape[2])
            for part in _parts(rows, some, widest, tables, from_right, block_tokens, budget)
        ]

    def attend(
        self,
        query: Tensor,
        halves: Tensor,
        layer: int,
        *,
        scale: float,
        soft_cap: float | None,
        log_sums: Tensor | None = None,
    ) -> Tensor:
        """Return attention of the query's shape, with arithmetic in fp32 at least.

        query: [rows, kv_heads, group, head_dim]. halves: as from `half_rows`. log_sums: [rows,
        kv_heads, group], filled with the logarithm of the sum of the scores' exponentials of each
        row that has keys.
        """
        if self._order is not None:
            query = query.index_select(0, self._order)
        sums = ordered_like(log_sums, self._order)
        if len(self._parts) == 1 and not self._has_empty:
            attended = _attend(query, halves, self._parts[0], layer, scale, soft_cap, sums)
        else:
            attended = torch.zeros_like(query, memory_format=torch.contiguous_format)
            for part in self._parts:
                some = query[part.rows, part.heads]
                own = None if sums is None else sums[part.rows, part.heads]
                attended[part.rows, part.heads] = _attend(
                    some, halves, part, layer, scale, soft_cap, own
                )
        if self._order is None:
            return attended
        if log_sums is not None and sums is not None:
            log_sums.index_copy_(0, self._order, sums)
        return torch.empty_like(attended).index_copy_(0, self._order, attended)


def _parts(
    all_rows: Rows,
    part: slice,
    widest: int,
    tables: Tensor,
    from_right: Tensor,
    block_tokens: int,
    budget: int,
) -> Iterator[_Part]:
    """Yield parts of a group, cut by KV heads if all of them are beyond `budget` columns."""
    # Past a row's last column its first one is repeated: only its own blocks are read, and that one
    # is nearly always full.
    rows = Rows(*(each[part] for each in all_rows))
    begins, lengths = rows.begins.unsqueeze(1), rows.lengths.unsqueeze(1)
    right = from_right[rows.table_rows].unsqueeze(1)
    first = begins // block_tokens
    columns = first + torch.arange(widest, device=tables.device)
    own = torch.where(columns * block_tokens < lengths, columns, first)
    positions = token_positions(columns, right, block_tokens)
    hidden = (positions < begins) | (positions >= lengths)
    unwritten = (token_positions(own, right, block_tokens) >= lengths).nonzero()
    bias = torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, -torch.inf)
    # [rows, columns, layers, kv_heads] to [layers, rows, kv_heads, columns]
    blocks = tables[rows.table_rows.unsqueeze(1), :, :, own].permute(2, 0, 3, 1)
    num_layers, num_rows, num_heads, _ = blocks.shape
    step = max(1, budget // (num_rows * widest))
    for start in range(0, num_heads, step):
        heads = slice(start, min(start + step, num_heads))
        ids = 2 * blocks[:, :, heads]
        num_parts = heads.stop - heads.start
        yield _Part(
            rows=part,
            heads=heads,
            ids=torch.stack((ids, ids + 1), dim=1).view(num_layers, -1),
            bias=bias.repeat_interleave(num_parts, 0).unsqueeze(1),
            unwritten=_gathered_at(unwritten, num_rows, num_parts, bias.shape[1]),
        )


def _gathered_at(unwritten: Tensor, num_rows: int, num_heads: int, num_tokens: int) -> Tensor:
    """Return where the (row, token) pairs lie among gathered tokens [2, rows, heads, tokens]."""
    row, token = unwritten.unbind(1)
    heads = torch.arange(num_heads, device=row.device)
    keys = ((row.unsqueeze(1) * num_heads + heads) * num_tokens + token.unsqueeze(1)).flatten()
    return torch.cat((keys, keys + num_rows * num_heads * num_tokens))


def _attend(
    query: Tensor,
    halves: Tensor,
    part: _Part,
    layer: int,
    scale: float,
    soft_cap: float | None,
    log_sums: Tensor | None,
) -> Tensor:
    """Return attention [rows, heads, group, head_dim] of a part; query likewise."""
    shape, head_dim = query.shape, query.shape[-1]
    gathered = read_halves(halves, part.ids[layer], head_dim)
    if len(part.unwritten):
        gathered.index_fill_(0, part.unwritten, 0.0)
    if query.dtype.itemsize < 4:
        query, gathered = query.float(), gathered.float()
    keys, values = gathered.view(2, shape[0] * shape[1], -1, head_dim)
    flat = query.flatten(0, 1)
    bias = part.bias.to(flat.dtype)
    if soft_cap is None:
        scores = torch.baddbmm(bias, flat, keys.transpose(1, 2), alpha=scale)
    else:
        scores = torch.bmm(flat * (scale / soft_cap), keys.transpose(1, 2)).tanh_()
        scores = torch.add(bias, scores, alpha=soft_cap)
    return torch.bmm(softmax(scores, log_sums), values).view(shape)
