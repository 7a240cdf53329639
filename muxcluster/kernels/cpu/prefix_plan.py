"""CPU path of decode attention of prefix groups: a plan per step reads each prefix once a layer.

Computes what `prefix_attention` computes for rows of one token (BatchLLM §4.4), and computes once
what is the same in every layer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from muxcluster.kernels.cpu.decode_plans import decode_plan
from muxcluster.kernels.cpu.decode_rows import softmax
from muxcluster.kernels.layout import read_halves

# Keys and values of a prefix are gathered in parts below this, so that they stay in the cache.
PART_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, eq=False)
class _Prefix:
    """Some columns of one group."""

    rows: slice  # of the step
    ids: Tensor  # int32 [layers, 2 * kv_heads * columns], halves of the pool: all K, then all V


class PrefixPlan:
    """How the rows of one decode step attend where groups of them share prefixes."""

    def __init__(
        self,
        query: Tensor,
        halves: Tensor,
        tables: Tensor,
        table_rows: Tensor,
        lengths: Tensor,
        from_right: Tensor,
        group_offsets: Tensor,
        prefix_lengths: Tensor,
        *,
        block_tokens: int,
    ) -> None:
        """query, halves, tables: as of `decode_plan`. table_rows, lengths: int64 [rows], rows of a
        group side by side, each with at least one key behind its prefix.
        group_offsets: int64 [groups + 1]. prefix_lengths: int64 [groups], as in `prefix_attention`.
        """
        sizes = group_offsets.diff()
        begins = prefix_lengths.repeat_interleave(sizes)
        if not bool((begins < lengths).all()):
            raise ValueError("a row has no key of its own behind the prefix of its group")
        self._distinct = decode_plan(
            query,
            halves,
            tables,
            table_rows,
            lengths,
            from_right,
            block_tokens=block_tokens,
            begins=begins,
        )
        column_bytes = 2 * tables.shape[2] * block_tokens * query.shape[-1] * query.element_size()
        most = max(1, PART_BYTES // column_bytes)
        self._prefixes = [
            prefix
            for first, size, tokens in zip(
                group_offsets[:-1].tolist(), sizes.tolist(), prefix_lengths.tolist(), strict=True
            )
            if size and tokens
            for prefix in _parts(
                tables[table_rows[first], :, :, : tokens // block_tokens],
                slice(first, first + size),
                most,
            )
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
        """As `DecodePlan.attend`; log_sums in fp32 at least."""
        wide = torch.promote_types(query.dtype, torch.float32)
        sums = query.new_empty(query.shape[:3], dtype=wide) if log_sums is None else log_sums
        attended = self._distinct.attend(
            query, halves, layer, scale=scale, soft_cap=soft_cap, log_sums=sums
        ).to(wide)
        for prefix in self._prefixes:
            some, own = query[prefix.rows], sums[prefix.rows]
            shared, shared_sums = _attend(some, halves, prefix.ids[layer], scale, soft_cap)
            total = torch.logaddexp(own, shared_sums)
            mine = attended[prefix.rows].mul_((own - total).exp_().unsqueeze(3))
            mine.add_(shared.mul_((shared_sums - total).exp_().unsqueeze(3)))
            own.copy_(total)
        return attended


def _parts(blocks: Tensor, rows: slice, most: int) -> list[_Prefix]:
    """blocks: int32 [layers, kv_heads, columns], cut after `most` columns."""
    found = []
    for part in torch.split(blocks, most, dim=2):
        ids = 2 * part
        found.append(_Prefix(rows, torch.stack((ids, ids + 1), dim=1).flatten(1)))
    return found


def _attend(
    query: Tensor, halves: Tensor, ids: Tensor, scale: float, soft_cap: float | None
) -> tuple[Tensor, Tensor]:
    """Return attention of a group's queries to shared keys alone, and the logarithms of its sums.

    Queries and attention: [rows, kv_heads, group, head_dim]; logarithms: [rows, kv_heads, group].
    """
    rows, kv_heads, group, head_dim = query.shape
    keys, values = read_halves(halves, ids, head_dim).view(2, kv_heads, -1, head_dim)
    if query.dtype.itemsize < 4:
        query, keys, values = query.float(), keys.float(), values.float()
    flat = query.transpose(0, 1).reshape(kv_heads, rows * group, head_dim) * scale
    scores = torch.bmm(flat, keys.transpose(1, 2))
    if soft_cap is not None:
        scores = scores.div_(soft_cap).tanh_().mul_(soft_cap)
    sums = scores.new_empty((kv_heads, rows * group))
    attended = torch.bmm(softmax(scores, sums), values)
    shape = (kv_heads, rows, group)
    return attended.view(*shape, head_dim).transpose(0, 1), sums.view(shape).transpose(0, 1)
