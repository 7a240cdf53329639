"""The tables of one model: its columns of blocks, and its live sequences, as arrays."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muxcluster.kvcache.pool import LEFT, IdStack


def array_bytes(*owners: object) -> int:
    """Return the bytes of the arrays that objects have as attributes; views of others not.

    Pages of an array that were never written take no memory, and count here.
    """
    values = {id(value): value for owner in owners for value in vars(owner).values()}
    arrays = [each for each in values.values() if isinstance(each, np.ndarray)]
    return sum(each.nbytes for each in arrays if each.base is None)


class ColumnStore:
    """Columns (one token block over all layers and KV heads) of one model."""

    def __init__(
        self, num_columns: int, blocks_per_column: int, *, has_block_ids: bool = True
    ) -> None:
        self.blocks_per_column = blocks_per_column
        self.num_ids = blocks_per_column if has_block_ids else 0
        self.blocks = np.zeros((num_columns, self.num_ids), dtype=np.int32)  # ids, layer-major
        self.refs = np.zeros(num_columns, dtype=np.int32)  # live sequences that read the column
        self.left_refs = np.zeros(num_columns, dtype=np.int32)  # left ones among them
        # A left sequence holds it or held it: it is evicted after those that only right ones read.
        self.was_left = np.zeros(num_columns, dtype=np.bool_)
        # Owner bit of its blocks, 0 for a free column: left while a left sequence reads it, else
        # right; of an unread one, that of the last reader.
        self.owners = np.zeros(num_columns, dtype=np.uint8)
        # Its key is not for others: its only reader counts on its blocks, see `ModelCache.slide`.
        self.is_private = np.zeros(num_columns, dtype=np.bool_)
        self._free = IdStack(num_columns)

    def add(self, blocks: NDArray[np.int32], owners: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return new columns with one reader each; blocks int32 [n, num_ids], owners [n]."""
        columns = self._free.take(len(blocks))
        places = columns.astype(np.intp)  # once: numpy would convert at each use
        self.blocks[places] = blocks
        self.owners[places] = owners
        self.refs[places] = 1
        self.left_refs[places] = self.was_left[places] = owners == LEFT
        return columns

    def remove(
        self, columns: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.uint8] | np.uint8]:
        """Remove unread columns (at least one); return block ids and owner bits, [n * num_ids].

        The owner is one bit where all columns have the same.
        """
        places = columns.astype(np.intp)
        assert not np.count_nonzero(self.refs[places]), "a column with readers is removed"
        blocks = self.blocks[places].ravel()
        owners = self.owners[places]
        self.owners[places] = 0
        self.was_left[places] = False
        self._free.give(columns)
        if np.count_nonzero(owners == owners[0]) == len(owners):
            return blocks, owners[0]  # most often, and faster than to repeat it
        return blocks, owners.repeat(self.num_ids)

    def attach(self, columns: NDArray[np.int32], owner: int) -> None:
        """Add a reader of the side `owner` to each of `columns` (distinct)."""
        places = columns.astype(np.intp)
        self.refs[places] += 1
        if owner == LEFT:
            self.left_refs[places] += 1
            self.was_left[places] = True

    def detach(self, columns: NDArray[np.int32], owner: int) -> NDArray[np.bool_]:
        """Remove a reader of the side `owner` from each of `columns` (distinct).

        Returns where none is left, bool [n].
        """
        places = columns.astype(np.intp)
        self.is_private[places] = False
        refs = self.refs[places] - 1
        self.refs[places] = refs
        if owner == LEFT:
            self.left_refs[places] -= 1
        unread: NDArray[np.bool_] = refs == 0
        return unread

    @property
    def table_bytes(self) -> int:
        """Bytes of its arrays."""
        return array_bytes(self, self._free)

    def check(self) -> None:
        """Raise AssertionError where free columns and owner bits disagree."""
        self._free.check()
        assert not self.owners[self._free.ids].any(), "a live column is on the free list"
        assert np.count_nonzero(self.owners) + len(self._free) == len(self.owners), "column lost"
        assert not self.refs[self.owners == 0].any(), "a free column has readers"
        assert (self.refs[self.is_private] == 1).all(), "a private column has other readers"
        assert (self.left_refs >= 0).all(), "a column has a negative number of readers"
        assert (self.left_refs <= self.refs).all(), "more left readers than readers"
        is_left, is_read = self.left_refs > 0, self.refs > 0
        assert (self.owners[is_left] == LEFT).all(), "a left sequence reads what is not left"
        assert (self.owners[is_read & ~is_left] != LEFT).all(), "only right ones read what is left"
        assert self.was_left[is_left].all() and not self.was_left[self.owners == 0].any(), (
            "which columns left sequences held is forgotten"
        )


class Lack(NamedTuple):
    """The columns that sequences need."""

    rows: NDArray[np.int32]  # int32 [n], distinct
    held: NDArray[np.int32]  # int32 [n], columns now
    wanted: NDArray[np.int32]  # int32 [n], columns then
    total: int  # columns to come


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """Table entries [row, position] to be filled, one for each new column."""

    rows: NDArray[np.int32]  # int32 [n]
    positions: NDArray[np.int32]  # int32 [n]

    def __len__(self) -> int:
        return len(self.rows)


class SequenceTable:
    """Tables and lengths by row; a row is open while its owner bit is not 0."""

    def __init__(
        self,
        max_seqs: int,
        max_model_len: int,
        block_tokens: int,
        *,
        names_all: bool = True,
        state_columns: int = 0,
    ) -> None:
        """names_all: False where only columns that others may share get an id. state_columns: see
        `KvModel`."""
        self.names_all = names_all
        self.block_tokens = block_tokens
        self.state_columns = state_columns
        self.max_columns = state_columns + -(-max_model_len // block_tokens)
        # Column ids, valid from begins to num_named.
        self.columns = np.zeros((max_seqs, self.max_columns), dtype=np.int32)
        # Columns taken so far, with those that were given back; places in a row never move.
        self.num_columns = np.zeros(max_seqs, dtype=np.int32)
        # Leading columns that were given back: they lie wholly behind the sequence's window.
        self.begins = np.zeros(max_seqs, dtype=np.int32)
        # Leading columns that have an id, or were given back.
        self.num_named = self.num_columns if names_all else np.zeros(max_seqs, dtype=np.int32)
        self.capacity = np.zeros(max_seqs, dtype=np.int32)  # tokens that fit in the columns
        self.num_committed = np.zeros(max_seqs, dtype=np.int32)  # tokens in computed columns
        self.owners = np.zeros(max_seqs, dtype=np.uint8)  # owner bit of the side it fills from
        self.version = 0  # changes whenever a sequence has other computed columns than before

    def open(self, row: int, owner: int, columns: NDArray[np.int32], begin: int = 0) -> None:
        """Begin a sequence whose columns from `begin` on (int32 [n]) are computed already.

        It holds none of those before, which lie behind its window.
        """
        assert self.owners[row] == 0, f"row {row} is open already"
        self.version += 1
        self.owners[row], self.begins[row] = owner, begin
        assert not (self.state_columns and len(columns)), "states are not in the prefix cache"
        end = begin + len(columns)
        self.columns[row, begin:end] = columns
        self.num_columns[row] = self.num_named[row] = end
        self.capacity[row] = self.num_committed[row] = end * self.block_tokens

    def close(self, row: int) -> tuple[NDArray[np.int32], int]:
        """End a sequence; return its columns with ids, int32 [n], in order, and how many more."""
        assert self.owners[row] != 0, f"row {row} is not open"
        self.version += 1
        num_named = int(self.num_named[row])
        columns = self.columns[row, self.begins[row] : num_named].copy()
        num_others = int(self.num_columns[row]) - num_named
        self.owners[row] = self.num_named[row] = self.begins[row] = 0
        self.num_columns[row] = self.capacity[row] = self.num_committed[row] = 0
        return columns, num_others

    def give_back(self, row: int, begin: int) -> tuple[NDArray[np.int32], int]:
        """Take the columns before `begin`, which the row no longer needs.

        Returns their ids, int32 [n], in order, and how many more had none.
        """
        first, num_named = int(self.begins[row]), int(self.num_named[row])
        assert first <= begin <= self.num_columns[row], f"row {row} has no columns to {begin}"
        self.version += 1
        named = min(begin, num_named)
        columns = self.columns[row, first:named].copy()
        self.begins[row] = begin
        if begin > named:
            self.num_named[row] = begin
        return columns, begin - named

    def truncate(self, row: int, num_columns: int) -> NDArray[np.int32]:
        """Take the columns from `num_columns` on; return their ids, int32 [n], in order."""
        assert self.names_all, "columns without ids cannot be taken"
        assert num_columns >= self.begins[row], "columns are taken that were given back"
        self.version += 1
        columns = self.columns[row, num_columns : self.num_columns[row]].copy()
        self.num_columns[row] = num_columns
        self.capacity[row] = self._tokens_in(num_columns)
        self.uncommit(row, num_columns)
        return columns

    def _tokens_in(self, num_columns: int) -> int:
        """Return the tokens that fit in the first `num_columns` columns of a sequence."""
        return max(0, num_columns - self.state_columns) * self.block_tokens

    def put_back(self, row: int, columns: NDArray[np.int32]) -> None:
        """Add `columns` (int32 [n]) that `truncate` took."""
        held = int(self.num_columns[row])
        self.columns[row, held : held + len(columns)] = columns
        self.num_columns[row] = held + len(columns)
        self.capacity[row] = self._tokens_in(held + len(columns))

    def uncommit(self, row: int, num_columns: int) -> None:
        """Count no columns from `num_columns` on as computed."""
        self.num_committed[row] = min(self.num_committed[row], self._tokens_in(num_columns))

    def lack(self, rows: NDArray[np.int32], num_tokens: NDArray[np.int32]) -> Lack | None:
        """Return what rows[i] (distinct) lack to hold num_tokens[i] tokens; None for nothing."""
        places = (num_tokens > self.capacity[rows]).nonzero()[0]
        if len(places) == 0:
            return None
        short = rows[places]
        held = self.num_columns[short]
        wanted = -(-num_tokens[places] // self.block_tokens)
        if self.state_columns:
            wanted = wanted + np.int32(self.state_columns)
        if self.names_all:  # else nothing can be damaged, and `check` would see it
            self._check_rows(short, wanted)
        return Lack(short, held, wanted, int((wanted - held).sum()))

    def count(self, lack: Lack) -> None:
        """Add the columns that were lacking, without their ids."""
        rows = lack.rows.astype(np.intp)
        self.num_columns[rows] = lack.wanted
        self.capacity[rows] = (lack.wanted - np.int32(self.state_columns)) * self.block_tokens

    def name(self, row: int, columns: NDArray[np.int32]) -> None:
        """Give the next columns of `row` these ids (int32 [n])."""
        start = int(self.num_named[row])
        end = start + len(columns)
        self.columns[row, start:end] = columns
        self.num_named[row] = end

    def growth(self, lack: Lack) -> Growth:
        """Return the table entries to be filled."""
        short, held, wanted, total = lack
        if total == len(short):  # one column each, as in most decode steps
            return Growth(short, held)
        extra = wanted - held
        end = extra.cumsum()
        # The entries of one row are held, held + 1, ...; the repeated term restarts the count.
        positions = np.arange(end[-1]) + (held - end + extra).repeat(extra)
        return Growth(short.repeat(extra), positions.astype(np.int32))

    def append(self, lack: Lack, growth: Growth, columns: NDArray[np.int32]) -> None:
        """Fill the entries of `growth` with `columns` (int32 [len(growth)])."""
        self.columns[growth.rows, growth.positions] = columns
        self.count(lack)

    def advance(self, row: int, count: int) -> slice:
        """Mark the next `count` columns as computed.

        Returns where they are in the row's table, without those that were given back.
        """
        self.version += 1
        start = self.state_columns + int(self.num_committed[row]) // self.block_tokens
        end = start + count
        assert end <= self.num_columns[row], f"row {row} commits columns it does not hold"
        self.num_committed[row] = self._tokens_in(end)
        return slice(min(end, max(start, int(self.begins[row]))), end)

    def _check_rows(self, rows: NDArray[np.int32], wanted: NDArray[np.int32]) -> None:
        assert np.count_nonzero(self.owners[rows]) == len(rows), "a row grows that is not open"
        assert len(set(rows.tolist())) == len(rows), "a row is named twice"
        assert max(wanted.tolist()) <= self.max_columns, "more tokens than max_model_len"

    def entries(self, rows: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return all entries of `rows` that have ids: rows and positions, int32 [n] each."""
        firsts, ends = self.begins[rows], self.num_named[rows]
        places = np.arange(self.max_columns, dtype=np.int32)
        filled = (places >= firsts[:, None]) & (places < ends[:, None])
        positions = np.nonzero(filled)[1].astype(np.int32)
        return np.repeat(rows, ends - firsts), positions

    def check(self) -> None:
        """Raise AssertionError where counts of a row contradict each other."""
        of_tokens = np.maximum(self.num_columns - self.state_columns, 0)
        assert (self.capacity == of_tokens * self.block_tokens).all(), "capacity is off"
        assert (self.num_committed <= self.capacity).all(), "more committed than held"
        assert (self.num_columns <= self.max_columns).all(), "more tokens than max_model_len"
        assert (self.num_named <= self.num_columns).all(), "more ids than columns"
        assert (self.begins <= self.num_named).all(), "columns are given back that were not taken"
        assert not self.begins[self.owners == 0].any(), "a closed row has given columns back"
        assert not self.num_columns[self.owners == 0].any(), "a closed row holds columns"
