"""Online softmax over shared prefixes and distinct keys: arithmetic of the CPU path."""

from dataclasses import dataclass

import torch
from torch import Tensor

from muxcluster.kernels.cpu.prefix_tiles import Tile
from muxcluster.kernels.layout import read_halves, token_positions

# Gathered keys and values, or scores, stay below this, so that they fit in the cache.
PART_BYTES = 4 << 20
LOWEST = -1e30  # highest score before any key was seen; finite, so that differences are never NaN


@dataclass(frozen=True, slots=True)
class RunningSoftmax:
    """Softmax over the keys seen so far, in fp32 at least."""

    # highest, total: [tokens, kv_heads, group, 1]
    highest: Tensor
    total: Tensor
    attended: Tensor  # [tokens, kv_heads, group, head_dim], not yet divided by the total

    @classmethod
    def empty(cls, query: Tensor) -> "RunningSoftmax":
        """Return a softmax without keys for queries [tokens, kv_heads, group, head_dim]."""
        return cls(
            query.new_full((*query.shape[:3], 1), LOWEST),
            query.new_zeros((*query.shape[:3], 1)),
            query.new_zeros(query.shape),
        )

    def add(self, tokens: Tensor, highest: Tensor, total: Tensor, attended: Tensor) -> None:
        """Merge other keys' softmax into the rows `tokens` (int64, none twice)."""
        before = self.highest[tokens]
        top = torch.maximum(before, highest)
        old, new = torch.exp(before - top), torch.exp(highest - top)
        self.total[tokens] = self.total[tokens] * old + total * new
        self.attended[tokens] = self.attended[tokens] * old + attended * new
        self.highest[tokens] = top

    def output(self, sinks: Tensor | None = None) -> Tensor:
        """Return attention [tokens, kv_heads, group, head_dim]; zeros where no key was seen.

        sinks: [kv_heads, group], see `kernels.cpu.sinks`; None: the model has none.
        """
        total = self.total
        if sinks is not None:
            total = total + (sinks.to(total.dtype).unsqueeze(-1) - self.highest).exp()
        return self.attended / total.clamp(min=torch.finfo(total.dtype).tiny)


@dataclass(frozen=True, slots=True)
class PooledKeys:
    """Keys and values in the pool: its halves, and a layer's tables, which point there."""

    halves: Tensor
    table: Tensor
    from_right: Tensor
    block_tokens: int
    head_dim: int

    def gather(self, blocks: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return keys and values [n, tokens, head_dim] of blocks [n, columns] as they lie there."""
        ids = 2 * blocks.reshape(-1).long()
        gathered = read_halves(self.halves, torch.cat((ids, ids + 1)), self.head_dim)
        keys, values = gathered.view(2, len(blocks), -1, self.head_dim).to(dtype)
        return keys, values


def add_prefix(
    running: RunningSoftmax,
    query: Tensor,
    tokens: Tensor,
    pooled: PooledKeys,
    blocks: Tensor,
    soft_cap: float | None,
) -> None:
    """Attend all queries of a group to the shared keys, part by part.

    query: scaled, [all tokens, kv_heads, group, head_dim]. tokens: int64, the group's queries.
    blocks: int32 [kv_heads, columns], full.
    """
    _, kv_heads, group, head_dim = query.shape
    queries = query[tokens].transpose(0, 1).reshape(kv_heads, -1, head_dim)
    per_key = max(queries.shape[1], 2 * head_dim) * kv_heads * query.element_size()
    columns = max(1, PART_BYTES // (per_key * pooled.block_tokens))
    for part in torch.split(blocks, columns, dim=1):
        keys, values = pooled.gather(part, query.dtype)
        softmax = _attend(queries, keys, values, None, soft_cap)
        grouped = (each.view(kv_heads, len(tokens), group, -1) for each in softmax)
        running.add(tokens, *(each.transpose(0, 1) for each in grouped))


def add_distinct(
    running: RunningSoftmax,
    query: Tensor,
    tiles: list[Tile],
    pooled: PooledKeys,
    soft_cap: float | None,
) -> None:
    """Attend tiles of equally many queries to each row's own keys, padded to the widest (last)."""
    _, kv_heads, group, head_dim = query.shape
    count, widest, block_tokens = tiles[-1].queries, tiles[-1].columns, pooled.block_tokens
    # Columns that every query of every tile sees whole need no mask.
    clear = max(0, ((tiles[0].columns - 1) * block_tokens + 2 - count) // block_tokens)
    numbers = torch.tensor([tile[1:] for tile in tiles]).T.unsqueeze(2)
    used, first, table_rows, begins, ends = numbers
    tokens = first + torch.arange(count)
    skipped = begins // block_tokens
    columns = skipped + torch.arange(widest)
    positions = token_positions(columns[:, clear:], pooled.from_right[table_rows], block_tokens)
    limits = ends - count + torch.arange(count)
    # Past a row's last column that column is repeated, so that only its own blocks are read.
    own = torch.minimum(columns, skipped + used - 1)
    blocks = pooled.table[table_rows, :, own].transpose(1, 2).flatten(0, 1)
    keys, values = pooled.gather(blocks, query.dtype)
    unused = (positions >= ends)[:, None, :, None]
    tail = values.view(len(tiles), kv_heads, -1, head_dim)[:, :, clear * block_tokens :]
    tail.masked_fill_(unused, 0.0)
    # A tile's queries go by KV head, token, head of the group.
    queries = query[tokens].transpose(1, 2).reshape(-1, count * group, head_dim)
    hidden = (positions.unsqueeze(1) > limits.unsqueeze(2)).repeat_interleave(group, 1)
    softmax = _attend(queries, keys, values, hidden.repeat_interleave(kv_heads, 0), soft_cap)
    split = (each.view(len(tiles), kv_heads, count, group, -1) for each in softmax)
    running.add(tokens.flatten(), *(each.transpose(1, 2).flatten(0, 1) for each in split))


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None, soft_cap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return highest score and total weight [n, queries, 1], and the sum of weighted values.

    query: scaled, [n, queries, head_dim]. keys, values: [n, tokens, head_dim]. hidden: bool [n,
    queries, last tokens], True for those of the last keys that are not seen.
    """
    scores = torch.bmm(query, keys.transpose(1, 2))
    if soft_cap is not None:
        scores = torch.tanh(scores / soft_cap) * soft_cap
    if hidden is not None:
        scores[..., -hidden.shape[-1] :].masked_fill_(hidden, -torch.inf)
    highest = scores.amax(-1, keepdim=True).clamp_(min=LOWEST)
    weights = scores.sub_(highest).exp_()
    return highest, weights.sum(-1, keepdim=True), torch.bmm(weights, values)
