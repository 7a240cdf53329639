"""CPU path of attention over latents that the pool keeps: gathers them, then plain products."""

from dataclasses import dataclass

import torch
from torch import Tensor

from muxcluster.kernels.cpu.decode_plan import GROUP_BYTES
from muxcluster.kernels.cpu.decode_rows import by_width, groups
from muxcluster.kernels.layout import token_positions

# Scores of so many queries and tokens are computed at once.
MOST_SCORES = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Some rows, padded to the columns of the longest by repeating their first one."""

    rows: Tensor  # int64 [rows], which rows of the step they are
    blocks: Tensor  # int32 [layers, rows, kv_heads, columns]
    hidden: Tensor  # bool [rows, columns * block_tokens], True for tokens that are not the row's


class LatentPlan:
    """How the rows of one decode step attend to latents, for all layers."""

    def __init__(
        self,
        tables: Tensor,
        table_rows: Tensor,
        lengths: Tensor,
        from_right: Tensor,
        *,
        block_tokens: int,
        token_bytes: int,
    ) -> None:
        """tables: int32 [max_seqs, layers, kv_heads, max_columns]. table_rows, lengths: int [rows],
        rows of length 0 are no sequence's. from_right: bool [max_seqs]. token_bytes: of a latent.
        """
        rows, widths, order = by_width(table_rows, lengths, None, block_tokens)
        budget = max(1, GROUP_BYTES // (block_tokens * token_bytes))
        self._parts: list[_Part] = []
        for some, widest in groups(widths, budget):
            mine = rows.table_rows[some]
            columns = torch.arange(widest).expand(len(mine), -1)
            right = from_right[mine].unsqueeze(1)
            own = rows.lengths[some].unsqueeze(1)
            hidden = token_positions(columns, right, block_tokens) >= own
            columns = torch.where(columns * block_tokens < own, columns, 0)
            # [rows, columns, layers, kv_heads] to [layers, rows, kv_heads, columns]
            blocks = tables[mine.unsqueeze(1), :, :, columns].permute(2, 0, 3, 1)
            self._parts.append(_Part(order[some], blocks, hidden))

    def attend(
        self, query: Tensor, halves: Tensor, layer: int, *, value_width: int, scale: float
    ) -> Tensor:
        """Return attention [rows, heads, value_width] in fp32 at least; zeros for rows of length 0.

        query: [rows, heads, width]. halves: as from `half_rows`.
        """
        wide = torch.promote_types(query.dtype, torch.float32)
        attended = query.new_zeros((*query.shape[:2], value_width), dtype=wide)
        for part in self._parts:
            latents = gathered(halves, part.blocks[layer], part.hidden).to(wide)
            attended[part.rows] = attended_to(
                query[part.rows].to(wide), latents, part.hidden.unsqueeze(1), value_width, scale
            )
        return attended


def gathered(halves: Tensor, blocks: Tensor, unwritten: Tensor) -> Tensor:
    """Return latents [rows, columns * block_tokens, width] in the order in which they lie.

    halves: as from `half_rows`. blocks: int [rows, kv_heads, columns]. unwritten: bool [rows,
    columns * block_tokens], tokens that come back as zeros: their places may hold anything.
    """
    rows, kv_heads, columns = blocks.shape
    keys = 2 * blocks.long()
    ids = torch.stack((keys, keys + 1), dim=2)
    block_tokens = unwritten.shape[1] // columns
    head_dim = halves.shape[1] // block_tokens
    shape = (rows, 2 * kv_heads, columns, block_tokens, head_dim)
    pieces = halves.index_select(0, ids.flatten()).view(shape).permute(0, 2, 3, 1, 4)
    latents = pieces.reshape(rows, columns * block_tokens, 2 * kv_heads * head_dim)
    return latents.masked_fill_(unwritten.unsqueeze(2), 0.0)


def attended_to(
    query: Tensor, latents: Tensor, hidden: Tensor, value_width: int, scale: float
) -> Tensor:
    """Return attention [rows, queries, value_width] to the first `value_width` elements of latents.

    query: [rows, queries, width]. latents: [rows, tokens, width], all finite. hidden: bool, of
    [rows, queries, tokens] or a shape that broadcasts to it; each query sees a token.
    """
    scores = torch.bmm(query, latents.transpose(1, 2)).mul_(scale)
    weights = scores.masked_fill_(hidden, -torch.inf).softmax(-1)
    return torch.bmm(weights, latents[..., :value_width])
