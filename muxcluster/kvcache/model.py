"""One model's part of the bookkeeping: its columns, sequences, prefixes and lent columns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import TableDelta
from muxcluster.core.kvshape import KvShape
from muxcluster.kvcache.lending.blocks import ColumnsOverLent, LentColumns
from muxcluster.kvcache.pool import LEFT
from muxcluster.kvcache.prefix import PrefixGroups, PrefixIndex
from muxcluster.kvcache.tables import ColumnStore, Lack, SequenceTable, array_bytes


@dataclass(frozen=True, slots=True)
class KvModel:
    """One model of the unit."""

    name: str
    shape: KvShape
    max_seqs: int  # rows: sequences that may hold blocks at the same time
    max_model_len: int  # most tokens of one sequence
    prefix_caching: bool = True  # False frees every column of a sequence that closes
    shared_prefix_tokens: int = 0  # see `PrefixGroups`
    # True if a column holds each token's KV in its place. Else a job that writes to a column may
    # write to all of it, and it is lent and saved whole.
    is_positional: bool = True


NumTokens = TypeVar("NumTokens", int, NDArray[np.int32])
# Takes a block for each owner bit, uint8 [n]; returns their ids, int32 [n].
Allocate = Callable[[NDArray[np.uint8]], NDArray[np.int32]]


class ModelKv:
    """Column store, sequence table, prefix index and lent columns of one model, without quotas.

    Where blocks have no ids, a column gets one only when it is published.
    """

    def __init__(
        self,
        model: KvModel,
        num_blocks: int,
        block_bytes: int,
        has_block_ids: bool,
        num_host_blocks: int | None,
    ) -> None:
        """num_host_blocks: for lent columns; None where no column is ever lent."""
        per_column = model.shape.blocks_per_column
        self.model = model
        self.block_bytes = block_bytes
        self.block_tokens = model.shape.block_tokens(block_bytes)
        self.slot_bytes = model.shape.slot_bytes
        num_columns = num_blocks // per_column
        most_empty, self._may_lend = num_columns, num_host_blocks is not None
        if num_host_blocks is not None:  # lent columns may have host blocks, or none at all
            num_columns += num_host_blocks // per_column + most_empty
        self.columns = ColumnStore(num_columns, per_column, has_block_ids=has_block_ids)
        self.sequences = SequenceTable(
            model.max_seqs, model.max_model_len, self.block_tokens, names_all=has_block_ids
        )
        self._names_all = has_block_ids
        shape = (num_columns if self._may_lend else 0, per_column)
        self.lent = LentColumns(model.max_seqs, shape, most_empty)
        self.over_lent = ColumnsOverLent(model.max_seqs, self.block_tokens)
        self.prefix = PrefixIndex()
        self.groups = PrefixGroups(self.columns, self.sequences, model.shared_prefix_tokens)
        # Live views for others to read, int32 [max_seqs].
        self.capacity = _read_only(self.sequences.capacity)
        self.num_committed = _read_only(self.sequences.num_committed)
        self.num_lent = _read_only(self.lent.counts)
        self.nothing = self._delta(np.empty(0, np.int32), np.empty(0, np.int32))

    @property
    def table_bytes(self) -> int:
        """Bytes of its arrays."""
        others = array_bytes(self.sequences, self.lent, self.over_lent, self.groups)
        return self.columns.table_bytes + others

    def delta(self, rows: NDArray[np.int32]) -> TableDelta:
        """Return the whole tables of `rows` but lent columns; empty where blocks have no ids."""
        if not self._names_all:
            return self.nothing
        entries, positions = self.sequences.entries(rows)
        if self._may_lend and self.lent.counts[rows].any():
            whole = self.sequences.num_columns - self.lent.counts
            is_whole = positions < whole[entries]
            entries, positions = entries[is_whole], positions[is_whole]
        return self._delta(entries, positions)

    def _delta(self, rows: NDArray[np.int32], positions: NDArray[np.int32]) -> TableDelta:
        return TableDelta(
            rows, positions, self.columns.blocks[self.sequences.columns[rows, positions]]
        )

    def extend(self, lack: Lack, allocate: Allocate) -> TableDelta:
        """Give the sequences their columns, of allocated blocks where these have ids."""
        if not self._names_all:
            self.sequences.count(lack)
            return self.nothing
        growth = self.sequences.growth(lack)
        owners = self.sequences.owners[growth.rows]
        blocks = allocate(owners.repeat(self.columns.num_ids))
        blocks = blocks.reshape(len(growth), self.columns.num_ids)
        columns = self.columns.add(blocks, owners)
        self.sequences.append(lack, growth, columns)
        return TableDelta(growth.rows, growth.positions, blocks)

    def commit(self, row: int, hashes: Sequence[bytes]) -> None:
        """Publish the next len(hashes) columns of `row`, which are computed, but lent ones."""
        sequences, owner = self.sequences, int(self.sequences.owners[row])
        if self._may_lend and self.lent.counts[row]:
            whole = sequences.num_columns[row] - self.lent.counts[row]
            hashes = hashes[: whole - sequences.num_committed[row] // self.block_tokens]
        place = sequences.advance(row, len(hashes))
        if not self.model.prefix_caching:
            return
        if not self._names_all:
            blocks = np.empty((len(hashes), 0), dtype=np.int32)
            owners = np.full(len(hashes), owner, dtype=np.uint8)
            sequences.name(row, self.columns.add(blocks, owners))
        self.prefix.commit(sequences.columns[row, place], hashes)

    def num_held(self, num_tokens: NumTokens) -> NumTokens:
        """Return how many places so many tokens may fill: see `KvModel.is_positional`."""
        if self.model.is_positional:
            return num_tokens
        return -(-num_tokens // self.block_tokens) * self.block_tokens

    def lent_entries(
        self, rows: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """Return row, position and id of each lent column of `rows` but kept ones, int32 [n]."""
        counts, ends = self.lent.counts[rows], self.sequences.num_columns[rows]
        column_rows = rows.repeat(counts)
        # The lent columns of a row end at ends; the repeated term restarts the count.
        positions = np.arange(counts.sum()) + (ends - counts.cumsum()).repeat(counts)
        positions = positions.astype(np.int32)
        columns = self.sequences.columns[column_rows, positions]
        is_lent = ~self.lent.is_kept[columns]
        return column_rows[is_lent], positions[is_lent], columns[is_lent]

    def check(self) -> None:
        """Raise AssertionError where tables, reference counts and prefixes disagree."""
        self.columns.check()
        self.sequences.check()
        self.prefix.check()
        rows = np.arange(self.model.max_seqs, dtype=np.int32)
        held = self.sequences.columns[self.sequences.entries(rows)]
        refs = np.bincount(held, minlength=len(self.columns.refs))
        assert (refs == self.columns.refs).all(), "reference counts differ from the tables"
        is_left = np.repeat(self.sequences.owners == LEFT, self.sequences.num_named)
        left_refs = np.bincount(held[is_left], minlength=len(self.columns.refs))
        assert (left_refs == self.columns.left_refs).all(), "left readers differ from the tables"
        assert self.columns.owners[self.prefix.keyed()].all(), "a free column has a key"


def _read_only(array: NDArray[np.int32]) -> NDArray[np.int32]:
    view = array.view()
    view.flags.writeable = False
    return view
