"""One kind of layers of a model: its columns, sequences, prefixes and lent columns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import TableDelta
from muxcluster.core.kvshape import KvShape
from muxcluster.kvcache.kinds import LayerKind, layer_kinds
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
    # A token of `window_layers`, ascending, sees only the last `window` tokens, itself among them.
    window: int = 0
    window_layers: tuple[int, ...] = ()
    # Columns that each sequence holds before those of its tokens, for states of layers that keep
    # no keys and values. Every job of the sequence writes to all of them, so they are lent and
    # saved whole. Such a model has neither windows nor a prefix cache.
    state_columns: int = 0

    def kinds(self) -> tuple[LayerKind, ...]:
        """Return its kinds of layers: see `layer_kinds`. A window of all tokens is none.

        Raises ValueError for a model with states that has windows or a prefix cache.
        """
        layers = self.window_layers if 0 < self.window < self.max_model_len else ()
        if self.state_columns and (layers or self.prefix_caching):
            raise ValueError(f"{self.name} keeps states: no windows and no prefix cache beside")
        return layer_kinds(self.name, self.shape, self.window, layers)


NumTokens = TypeVar("NumTokens", int, NDArray[np.int32])
# Takes a block for each owner bit, uint8 [n]; returns their ids, int32 [n].
Allocate = Callable[[NDArray[np.uint8]], NDArray[np.int32]]


class ModelKv:
    """Column store, sequence table, prefix index and lent columns of one kind of layers.

    Without quotas. A model whose layers all see the same tokens has one kind, another two, whose
    sequences grow together.

    Where blocks have no ids, a column gets one only when it is published.
    """

    def __init__(
        self,
        model: KvModel,
        kind: LayerKind,
        num_blocks: int,
        block_bytes: int,
        has_block_ids: bool,
        num_host_blocks: int | None,
    ) -> None:
        """num_host_blocks: for lent columns; None where no column is ever lent."""
        per_column = len(kind.cells)
        self.model = model
        self.kind = kind
        self.name = kind.name  # in the unit; `model.name` is whom its blocks are charged to
        self.block_bytes = block_bytes
        self.block_tokens = model.shape.block_tokens(block_bytes)
        self.slot_bytes = model.shape.slot_bytes
        num_columns = num_blocks // per_column
        most_empty, self._may_lend = num_columns, num_host_blocks is not None
        if num_host_blocks is not None:  # lent columns may have host blocks, or none at all
            num_columns += num_host_blocks // per_column + most_empty
        self.columns = ColumnStore(num_columns, per_column, has_block_ids=has_block_ids)
        self.sequences = SequenceTable(
            model.max_seqs,
            model.max_model_len,
            self.block_tokens,
            names_all=has_block_ids,
            state_columns=model.state_columns,
        )
        self._names_all = has_block_ids
        shape = (num_columns if self._may_lend else 0, per_column)
        self.lent = LentColumns(model.max_seqs, shape, most_empty)
        self.over_lent = ColumnsOverLent(model.max_seqs, self.block_tokens)
        self.prefix = PrefixIndex()
        shared = 0 if kind.window or model.state_columns else model.shared_prefix_tokens
        self.groups = PrefixGroups(self.columns, self.sequences, shared)
        # Live views for others to read, int32 [max_seqs].
        self.capacity = _read_only(self.sequences.capacity)
        self.num_committed = _read_only(self.sequences.num_committed)
        self.num_lent = _read_only(self.lent.counts)
        self.nothing = self._delta(np.empty(0, np.int32), np.empty(0, np.int32))

    @property
    def table_bytes(self) -> int:
        """Bytes of its arrays."""
        others = array_bytes(self.sequences, self.lent, self.over_lent, self.groups)
        return self.columns.table_bytes + self.kind.cells.nbytes + others

    def delta(self, rows: NDArray[np.int32]) -> TableDelta:
        """Return the tables of `rows` but lent columns; empty where blocks have no ids.

        blocks: of its layers alone, int32 [n, columns.num_ids].
        """
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

    def commit(self, row: int, hashes: Sequence[bytes], *, is_private: bool = False) -> None:
        """Publish the next len(hashes) columns of `row`, which are computed and not lent.

        Not those that were given back. is_private: others may not read them yet.
        """
        sequences, owner = self.sequences, int(self.sequences.owners[row])
        place = sequences.advance(row, len(hashes))
        count = place.stop - place.start
        if not self.model.prefix_caching or count == 0:
            return
        if not self._names_all:
            blocks = np.empty((count, 0), dtype=np.int32)
            owners = np.full(count, owner, dtype=np.uint8)
            sequences.name(row, self.columns.add(blocks, owners))
        columns = sequences.columns[row, place]
        self.prefix.commit(columns, hashes[len(hashes) - count :])
        if is_private:
            self.columns.is_private[columns] = True

    def num_committable(self, row: int) -> int:
        """Return how many columns of `row` after the committed ones are not lent."""
        whole = int(self.sequences.num_columns[row] - self.lent.counts[row])
        of_tokens = max(0, whole - self.model.state_columns)
        return of_tokens - int(self.sequences.num_committed[row]) // self.block_tokens

    def find(self, hashes: Sequence[bytes]) -> tuple[int, NDArray[np.int32]]:
        """Return the cached columns with which a sequence that begins with `hashes` may begin.

        That is the place of the first of them in the sequence, and their ids, int32 [n]. Those
        before it lie behind the window of all tokens to come.
        """
        if not self.kind.window:
            return 0, self.prefix.match(hashes)
        return self.prefix.match_seen(hashes, self.first_seen, self.columns.is_private)

    def first_seen(self, num_columns: int) -> int:
        """Return the first column that a token after so many columns sees."""
        return self.kind.first_column(num_columns * self.block_tokens, self.block_tokens)

    def num_held(self, num_tokens: NumTokens) -> NumTokens:
        """Return how many places so many tokens may fill, those of states among them.

        See `KvModel.is_positional`.
        """
        if not self.model.is_positional:
            num_tokens = -(-num_tokens // self.block_tokens) * self.block_tokens
        return num_tokens + self.model.state_columns * self.block_tokens

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
        num_held = self.sequences.num_named - self.sequences.begins
        is_left = np.repeat(self.sequences.owners == LEFT, num_held)
        left_refs = np.bincount(held[is_left], minlength=len(self.columns.refs))
        assert (left_refs == self.columns.left_refs).all(), "left readers differ from the tables"
        assert self.columns.owners[self.prefix.keyed()].all(), "a free column has a key"


def _read_only(array: NDArray[np.int32]) -> NDArray[np.int32]:
    view = array.view()
    view.flags.writeable = False
    return view


def joined_tables(
    kinds: Sequence[ModelKv], rows: NDArray[np.int32], positions: NDArray[np.int32]
) -> TableDelta:
    """Return the table entries of a model's `rows` at `positions` (int32 [n]) over all its layers.

    An entry is 0 for layers that have no block there: it was given back, or is lent and gone. No
    kernel reads it.
    """
    blocks = np.zeros((len(rows), kinds[0].model.shape.blocks_per_column), dtype=np.int32)
    for kv in kinds if len(rows) else ():
        held = (positions >= kv.sequences.begins[rows]).nonzero()[0]
        columns = kv.sequences.columns[rows[held], positions[held]]
        blocks[held[:, None], kv.kind.cells] = np.maximum(kv.columns.blocks[columns], 0)
    return TableDelta(rows, positions, blocks)
