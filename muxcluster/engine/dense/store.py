"""Stores rows of a model's own cache in the blocks of the unit's pool that the scheduler gave them.

A token lies where the paged engine would put one of as many bytes: a share of it in each block of
its column, at the place of its position. So lending, saving, host memory and shared prefixes move
token slots without knowing which backend wrote them. States of fixed size lie in blocks of their
own in a sequence's first column, after the number of tokens that they are of. They fill all token
places of these blocks, so moving the whole column moves them.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.core.kvshape import KvShape
from muxcluster.engine.dense.batch import KeptRow
from muxcluster.engine.dense.layout import RowLayout
from muxcluster.engine.memory.arena import ModelArena
from muxcluster.kernels.layout import half_offsets

_HEAD_BYTES = 8  # the number of tokens that the states are of, as int64

_SLICE_BYTES = 1 << 22  # Bytes of tokens written at a time: copies of all would be a second cache.

_WORDS = {2: torch.int16, 4: torch.int32}


def planes(layout: RowLayout, shape: KvShape, block_tokens: int) -> tuple[int, int]:
    """Return how many blocks of a column hold tokens, and how many hold states."""
    unit_bytes = 2 * shape.head_dim * shape.itemsize
    for_tokens = -(-layout.token_bytes // unit_bytes)
    state_bytes = layout.state_bytes + _HEAD_BYTES
    for_states = -(-state_bytes // (block_tokens * unit_bytes)) if layout.state_bytes else 0
    return for_tokens, for_states


class RowStore:
    """One model's rows; their tables must have the columns that are read or written."""

    def __init__(self, pool: Tensor, arena: ModelArena, shape: KvShape, layout: RowLayout) -> None:
        """pool: uint8 [num_blocks, block_bytes]. shape: whose blocks hold a row of `layout`."""
        self._pool = pool
        self._arena = arena
        self._layout = layout
        self._token_planes, self._state_planes = planes(layout, shape, arena.block_tokens)
        words = pool.view(_WORDS[shape.itemsize]).view(2 * len(pool), -1)
        used = words[:, : arena.block_tokens * shape.head_dim]
        self._units = used.view(len(used), arena.block_tokens, shape.head_dim)
        self._unit_bytes = shape.head_dim * shape.itemsize

    def write(
        self,
        cache: Any,
        table_rows: NDArray[np.integer],
        starts: NDArray[np.integer],
        counts: NDArray[np.integer],
    ) -> None:
        """Store tokens starts[i] to starts[i] + counts[i] (≥ 1) of table_rows[i].

        They are the last ones of row i of `cache`; its states are stored too, if there are any.
        """
        where = torch.from_numpy(table_rows.astype(np.int64)).to(self._pool.device)
        if self._state_planes:
            self._mark(where, np.full(len(table_rows), -1))
        if self._token_planes:
            most = max(1, _SLICE_BYTES // (len(table_rows) * self._layout.token_bytes))
            for behind in range(0, int(counts.max()), most):
                ends, left = starts + counts - behind, counts - behind
                self._write_tokens(
                    cache, table_rows.astype(np.int64), ends, left.clip(0, most), behind
                )
        if self._state_planes:
            self._write_states(cache, where)
            self._mark(where, starts + counts)

    def read(self, row: int, length: int) -> KeptRow | None:
        """Return a table row's first `length` tokens, or None if its states are not of so many."""
        blocks = self._arena.tables[row].flatten(0, 1).long()
        tokens = states = None
        if self._state_planes:
            states = self._units[self._state_halves(blocks)].flatten().view(torch.uint8)
            if int(states[:_HEAD_BYTES].clone().view(torch.int64)) != length:
                return None
            states = states[_HEAD_BYTES : _HEAD_BYTES + self._layout.state_bytes]
        if self._token_planes:
            tokens = self._read_tokens(blocks, row, length)
        return KeptRow(length, self._layout.cache(length, tokens, states))

    def forget(self, table_rows: NDArray[np.integer]) -> None:
        """Mark the states in the blocks of `table_rows` as not theirs."""
        if self._state_planes and len(table_rows):
            where = torch.from_numpy(table_rows.astype(np.int64)).to(self._pool.device)
            self._mark(where, np.full(len(table_rows), -1))

    def _write_tokens(
        self,
        cache: Any,
        table_rows: NDArray[np.int64],
        ends: NDArray[np.integer],
        counts: NDArray[np.integer],
        behind: int,
    ) -> None:
        """Write tokens ends[i] - counts[i] to ends[i], which have `behind` columns behind them."""
        width, arena = int(counts.max()), self._arena
        unit_bytes = 2 * self._token_planes * self._unit_bytes
        data = self._layout.tokens(cache, width, behind, unit_bytes).flatten(0, 1)
        rows, places = np.nonzero(np.arange(width) >= width - counts[:, None])
        device = data.device
        if len(rows) < len(data):
            data = data[torch.from_numpy(rows * width + places).to(device)]
        positions = torch.from_numpy(ends[rows] - width + places).to(device)
        owner = torch.from_numpy(table_rows[rows]).to(device)
        column = positions // arena.block_tokens
        tables = arena.tables.flatten(1, 2)[:, : self._token_planes]
        blocks = tables[owner, :, column].long()
        halves = torch.stack((2 * blocks, 2 * blocks + 1), dim=2).flatten(1)
        offsets = half_offsets(positions, arena.from_right[owner], arena.block_tokens)
        units = data.view(self._units.dtype).view(*halves.shape, -1)
        self._units[halves, offsets.unsqueeze(1)] = units

    def _read_tokens(self, blocks: Tensor, row: int, length: int) -> Tensor:
        """Return uint8 [length, token_bytes]."""
        columns = -(-length // self._arena.block_tokens)
        mine = blocks[: self._token_planes, :columns].T
        units = self._units[torch.stack((2 * mine, 2 * mine + 1), dim=2).flatten(1)]
        if self._arena.from_right[row]:
            units = units.flip(2)
        tokens = units.transpose(1, 2).flatten(2).flatten(0, 1)[:length]
        return tokens.contiguous().view(torch.uint8)[:, : self._layout.token_bytes]

    def _write_states(self, cache: Any, table_rows: Tensor) -> None:
        data = self._layout.states(cache)
        halves = self._state_halves(self._arena.tables.flatten(1, 2)[table_rows].long())
        unit_bytes = self._arena.block_tokens * self._unit_bytes
        whole = self._pool.new_zeros((len(data), halves.shape[1] * unit_bytes))
        whole[:, _HEAD_BYTES : _HEAD_BYTES + data.shape[1]] = data
        whole[:, :_HEAD_BYTES] = 255  # -1: not yet
        words = whole.view(self._units.dtype)
        self._units[halves] = words.view(*halves.shape, *self._units.shape[1:])

    def _mark(self, table_rows: Tensor, lengths: NDArray[np.integer]) -> None:
        first = self._arena.tables.flatten(1, 2)[table_rows, self._token_planes, 0].long()
        heads = torch.from_numpy(lengths.astype(np.int64)).view(torch.uint8)
        self._pool[first, :_HEAD_BYTES] = heads.view(-1, _HEAD_BYTES).to(self._pool.device)

    def _state_halves(self, tables: Tensor) -> Tensor:
        """Map [..., planes, columns] to [..., 2 x state planes], in units of `_units`."""
        blocks = tables.narrow(-2, self._token_planes, self._state_planes).select(-1, 0)
        return torch.stack((2 * blocks, 2 * blocks + 1), dim=-1).flatten(-2)
