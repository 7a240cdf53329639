"""The block tables of one model's live sequences, as arrays over slots."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Lack(NamedTuple):
    """What sequences need. slots, held, wanted: int32 [n], distinct slots, their columns now and
    then; total: columns to come.
    """

    slots: NDArray[np.int32]
    held: NDArray[np.int32]
    wanted: NDArray[np.int32]
    total: int


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """Table entries to be filled: one a new column.

    slots, positions: int32 [n], the entry [slot, position].
    """

    slots: NDArray[np.int32]
    positions: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.slots)


class SequenceTable:
    """Per-slot state; a slot is open while its owner bit is not 0.

    columns: int32 [max_seqs, max_columns], column ids, valid below num_named.
    num_columns, capacity, num_committed: int32 [max_seqs], columns held, tokens that fit in them,
        tokens in columns that are fully computed.
    num_named: int32 [max_seqs], leading columns that have an id: all where names_all, else those
        that others may come to share.
    owners: uint8 [max_seqs], owner bit of the side the sequence fills from.
    version: changes whenever a sequence has other computed columns than before.
    """

    def __init__(
        self, max_seqs: int, max_model_len: int, block_tokens: int, *, names_all: bool = True
    ) -> None:
        self.names_all = names_all
        self.block_tokens = block_tokens
        self.max_columns = -(-max_model_len // block_tokens)
        self.columns = np.zeros((max_seqs, self.max_columns), dtype=np.int32)
        self.num_columns = np.zeros(max_seqs, dtype=np.int32)
        self.num_named = self.num_columns if names_all else np.zeros(max_seqs, dtype=np.int32)
        self.capacity = np.zeros(max_seqs, dtype=np.int32)
        self.num_committed = np.zeros(max_seqs, dtype=np.int32)
        self.owners = np.zeros(max_seqs, dtype=np.uint8)
        self.version = 0

    def open(self, slot: int, owner: int, columns: NDArray[np.int32]) -> None:
        """Begin a sequence whose first columns (int32 [n]) are computed already."""
        assert self.owners[slot] == 0, f"slot {slot} is open already"
        self.version += 1
        self.owners[slot] = owner
        self.columns[slot, : len(columns)] = columns
        self.num_columns[slot] = self.num_named[slot] = len(columns)
        self.capacity[slot] = self.num_committed[slot] = len(columns) * self.block_tokens

    def close(self, slot: int) -> tuple[NDArray[np.int32], int]:
        """End a sequence; the columns with ids it held, int32 [n], in order, and how many more."""
        assert self.owners[slot] != 0, f"slot {slot} is not open"
        self.version += 1
        num_named = int(self.num_named[slot])
        columns = self.columns[slot, :num_named].copy()
        num_others = int(self.num_columns[slot]) - num_named
        self.owners[slot] = self.num_named[slot] = 0
        self.num_columns[slot] = self.capacity[slot] = self.num_committed[slot] = 0
        return columns, num_others

    def truncate(self, slot: int, num_columns: int) -> NDArray[np.int32]:
        """Take the columns from `num_columns` on from `slot`; their ids, int32 [n], in order."""
        assert self.names_all, "columns without ids cannot be taken"
        self.version += 1
        columns = self.columns[slot, num_columns : self.num_columns[slot]].copy()
        self.num_columns[slot] = num_columns
        self.capacity[slot] = num_columns * self.block_tokens
        self.num_committed[slot] = min(self.num_committed[slot], self.capacity[slot])
        return columns

    def put_back(self, slot: int, columns: NDArray[np.int32]) -> None:
        """Add `columns` (int32 [n]) that `truncate` took."""
        held = int(self.num_columns[slot])
        self.columns[slot, held : held + len(columns)] = columns
        self.num_columns[slot] = held + len(columns)
        self.capacity[slot] = (held + len(columns)) * self.block_tokens

    def lack(self, slots: NDArray[np.int32], num_tokens: NDArray[np.int32]) -> Lack | None:
        """What slots[i] (distinct) lack to hold num_tokens[i] tokens; None where nothing."""
        rows = (num_tokens > self.capacity[slots]).nonzero()[0]
        if len(rows) == 0:
            return None
        short = slots[rows]
        held = self.num_columns[short]
        wanted = -(-num_tokens[rows] // self.block_tokens)
        if self.names_all:  # else nothing can be damaged, and `check` would see it
            self._check_rows(short, wanted)
        return Lack(short, held, wanted, int((wanted - held).sum()))

    def count(self, lack: Lack) -> None:
        """The columns that were lacking are there, without ids or with them."""
        slots = lack.slots.astype(np.intp)
        self.num_columns[slots] = lack.wanted
        self.capacity[slots] = lack.wanted * self.block_tokens

    def name(self, slot: int, columns: NDArray[np.int32]) -> None:
        """The next columns of `slot` get these ids (int32 [n])."""
        start = int(self.num_named[slot])
        end = start + len(columns)
        self.columns[slot, start:end] = columns
        self.num_named[slot] = end

    def growth(self, lack: Lack) -> Growth:
        """The table entries to be filled."""
        short, held, wanted, total = lack
        if total == len(short):  # one column each, as in most decode steps
            return Growth(short, held)
        extra = wanted - held
        end = extra.cumsum()
        # The entries of one slot are held, held + 1, ...; the repeated term restarts the count.
        positions = np.arange(end[-1]) + (held - end + extra).repeat(extra)
        return Growth(short.repeat(extra), positions.astype(np.int32))

    def append(self, lack: Lack, growth: Growth, columns: NDArray[np.int32]) -> None:
        """Fill the entries of `growth` with `columns` (int32 [len(growth)])."""
        self.columns[growth.slots, growth.positions] = columns
        self.count(lack)

    def advance(self, slot: int, count: int) -> slice:
        """Mark the next `count` columns as computed; where they are in the slot's table."""
        self.version += 1
        start = int(self.num_committed[slot]) // self.block_tokens
        end = start + count
        assert end <= self.num_columns[slot], f"slot {slot} commits columns it does not hold"
        self.num_committed[slot] = end * self.block_tokens
        return slice(start, end)

    def _check_rows(self, slots: NDArray[np.int32], wanted: NDArray[np.int32]) -> None:
        assert np.count_nonzero(self.owners[slots]) == len(slots), "a slot grows that is not open"
        assert len(set(slots.tolist())) == len(slots), "a slot is named twice"
        assert max(wanted.tolist()) <= self.max_columns, "more tokens than max_model_len"

    def entries(self, slots: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """All entries of `slots` that have ids: their slots and positions, int32 [n] each."""
        counts = self.num_named[slots]
        filled = np.arange(self.max_columns, dtype=np.int32) < counts[:, None]
        positions = np.nonzero(filled)[1].astype(np.int32)
        return np.repeat(slots, counts), positions

    def check(self) -> None:
        """Raise AssertionError where counts of a slot contradict each other."""
        assert (self.capacity == self.num_columns * self.block_tokens).all(), "capacity is off"
        assert (self.num_committed <= self.capacity).all(), "more committed than held"
        assert (self.num_columns <= self.max_columns).all(), "more tokens than max_model_len"
        assert (self.num_named <= self.num_columns).all(), "more ids than columns"
        assert not self.num_columns[self.owners == 0].any(), "a closed slot holds columns"
