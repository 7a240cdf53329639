"""CPU path of decode attention in fp32 that reads keys and values where they lie in the pool.

The scores are a product of queries and the whole pool, sampled at each row's own tokens (a sparse
matrix in CSR form); the outputs are bags of the pool's values, weighted by the probabilities.
"""

# Nothing is gathered first: this takes a third of the time of gathering for 32 rows of 128 tokens.

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from muxcluster.kernels.cpu.decode_rows import (
    Rows,
    by_width,
    groups,
    is_identity,
    ordered_like,
    softmax,
)
from muxcluster.kernels.layout import half_offsets

MAX_INDICES = 1 << 20  # tokens of all query heads that are worked on at once

MIN_ROWS = 8  # with fewer rows gathering is as fast, having fewer operators


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Some rows, padded to the tokens of the longest by repeating the first one."""

    rows: slice
    # int64 [rows * kv_heads * tokens], into one layer's part of the flattened tables
    entries: Tensor
    offsets: Tensor  # int64 [rows, 1, tokens], inside the block
    bias: Tensor  # [rows * heads * tokens], 0 where a key is seen and -inf where not
    starts: Tensor  # int64 [rows * heads + 1], CSR rows


class DirectPlan:
    """How the rows of one decode step attend, for all layers of a model."""

    def __init__(
        self,
        tables: Tensor,
        table_rows: Tensor,
        lengths: Tensor,
        from_right: Tensor,
        *,
        block_tokens: int,
        group: int,
        sliding_window: int | None = None,
        begins: Tensor | None = None,
    ) -> None:
        """As `DecodePlan`; tables contiguous. group: query heads per KV head."""
        rows, widths, order = by_width(table_rows, lengths, sliding_window, block_tokens, begins)
        self._tables = tables
        self._block_tokens = block_tokens
        self._order = None if is_identity(order) else order
        self._has_empty = bool(widths) and widths[0] == 0
        budget = MAX_INDICES // (block_tokens * tables.shape[2] * group)
        self._parts = [
            _part(rows, some, tables, from_right, block_tokens, group)
            for some, _ in groups(widths, budget)
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
        """As `DecodePlan.attend`; halves without a gap between them."""
        if self._order is not None:
            query = query.index_select(0, self._order)
        tokens = halves.view(-1, query.shape[-1])
        sums = ordered_like(log_sums, self._order)
        if len(self._parts) == 1 and not self._has_empty:
            attended = self._attend(query, tokens, self._parts[0], layer, scale, soft_cap, sums)
        else:
            attended = torch.zeros_like(query, memory_format=torch.contiguous_format)
            for part in self._parts:
                some, own = query[part.rows], None if sums is None else sums[part.rows]
                attended[part.rows] = self._attend(some, tokens, part, layer, scale, soft_cap, own)
        if self._order is None:
            return attended
        if log_sums is not None and sums is not None:
            log_sums.index_copy_(0, self._order, sums)
        return torch.empty_like(attended).index_copy_(0, self._order, attended)

    def _attend(
        self,
        query: Tensor,
        tokens: Tensor,
        part: _Part,
        layer: int,
        scale: float,
        soft_cap: float | None,
        log_sums: Tensor | None,
    ) -> Tensor:
        """Return attention [rows, kv_heads, group, head_dim]. tokens: [pool, head_dim], K and V."""
        rows, kv_heads, group, head_dim = query.shape
        flat = query.reshape(-1, head_dim)
        ids = self._ids(part, layer, (rows, kv_heads), group)
        bias = part.bias if soft_cap is None else torch.zeros_like(part.bias)
        sampled = torch.sparse_csr_tensor(
            part.starts, ids, bias.clone(), (len(flat), len(tokens)), check_invariants=False
        )
        torch.sparse.sampled_addmm(sampled, flat, tokens.t(), alpha=scale, out=sampled)
        scores = sampled.values()
        if soft_cap is not None:
            scores = scores.div_(soft_cap).tanh_().mul_(soft_cap).add_(part.bias)
        weights = softmax(scores.view(len(flat), -1), log_sums)
        values = tokens[self._block_tokens :]  # a key's value lies half a block behind it
        return embedding_bag(
            ids.view(weights.shape), values, mode="sum", per_sample_weights=weights
        ).view(query.shape)

    def _ids(self, part: _Part, layer: int, heads: tuple[int, int], group: int) -> Tensor:
        """Return int64 [rows * heads * tokens], the keys' places among the pool's tokens."""
        _, _, kv_heads, columns = self._tables.shape
        own = self._tables.view(-1)[layer * kv_heads * columns :]
        blocks = own.index_select(0, part.entries).view(*heads, -1).long()
        places = torch.add(part.offsets, blocks, alpha=2 * self._block_tokens)
        return places.unsqueeze(2).expand(-1, -1, group, -1).reshape(-1)


def _part(
    all_rows: Rows,
    some: slice,
    tables: Tensor,
    from_right: Tensor,
    block_tokens: int,
    group: int,
) -> _Part:
    _, num_layers, kv_heads, max_columns = tables.shape
    rows = Rows(*(each[some].unsqueeze(1) for each in all_rows))
    num_seen = rows.lengths - rows.begins
    steps = torch.arange(int(num_seen.max()))
    positions = rows.begins + torch.where(steps < num_seen, steps, 0)
    columns = positions // block_tokens
    if int(columns.max()) >= max_columns:
        raise IndexError(f"a row of column {int(columns.max())} in tables of {max_columns}")
    first = (rows.table_rows * num_layers * kv_heads + torch.arange(kv_heads)) * max_columns
    offsets = half_offsets(positions, from_right[rows.table_rows], block_tokens)
    bias = torch.zeros(positions.shape).masked_fill_(steps >= num_seen, -torch.inf)
    num_tokens = len(steps)
    heads = kv_heads * group
    return _Part(
        rows=some,
        entries=(first.unsqueeze(2) + columns.unsqueeze(1)).reshape(-1),
        offsets=offsets.unsqueeze(1),
        bias=bias.repeat_interleave(heads, 0).view(-1),
        starts=torch.arange(0, len(positions) * heads * num_tokens + 1, num_tokens),
    )


def suits(tables: Tensor, halves: Tensor, query: Tensor) -> bool:
    """Return whether a `DirectPlan` can read this pool, and is the faster way for so many rows."""
    return (
        len(query) >= MIN_ROWS
        and query.dtype == halves.dtype == torch.float32
        and not query.is_cuda
        and tables.is_contiguous()
        and halves.is_contiguous()
    )


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch says once that CSR is new
    torch.sparse_csr_tensor([0, 0], [], [], (1, 1))
