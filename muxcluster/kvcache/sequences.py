"""The block tables of one model's live sequences, as arrays over slots."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """Table entries to be filled: one a new column.

    slots, positions: int32 [n], the entry [slot, position]. last: index of each slot's last entry.
    """

    slots: NDArray[np.int32]
    positions: NDArray[np.int32]
    last: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.slots)


class SequenceTable:
    """Per-slot state; a slot is open while its owner bit is not 0.

    columns: int32 [max_seqs, max_columns], column ids, valid below num_columns.
    num_columns, capacity, num_committed: int32 [max_seqs], columns held, tokens that fit in them,
        tokens in columns that are fully computed.
    owners: uint8 [max_seqs], owner bit of the side the sequence fills from.
    """

    def __init__(self, max_seqs: int, max_model_len: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.max_columns = -(-max_model_len // block_tokens)
        self.columns = np.zeros((max_seqs, self.max_columns), dtype=np.int32)
        self.num_columns = np.zeros(max_seqs, dtype=np.int32)
        self.capacity = np.zeros(max_seqs, dtype=np.int32)
        self.num_committed = np.zeros(max_seqs, dtype=np.int32)
        self.owners = np.zeros(max_seqs, dtype=np.uint8)
        self._rank = np.zeros(max_seqs, dtype=np.intp)

    def open(self, slot: int, owner: int, columns: NDArray[np.int32]) -> None:
        """Begin a sequence whose first columns (int32 [n]) are computed already."""
        assert self.owners[slot] == 0, f"slot {slot} is open already"
        self.owners[slot] = owner
        self.columns[slot, : len(columns)] = columns
        self.num_columns[slot] = len(columns)
        self.capacity[slot] = self.num_committed[slot] = len(columns) * self.block_tokens

    def close(self, slot: int) -> NDArray[np.int32]:
        """End a sequence; the columns it held, int32 [n], in order."""
        assert self.owners[slot] != 0, f"slot {slot} is not open"
        columns = self.columns[slot, : self.num_columns[slot]].copy()
        self.owners[slot] = 0
        self.num_columns[slot] = self.capacity[slot] = self.num_committed[slot] = 0
        return columns

    def growth(self, slots: NDArray[np.int32], num_tokens: NDArray[np.int32]) -> Growth | None:
        """What slots[i] (distinct) lack to hold num_tokens[i] tokens; None where nothing."""
        rows = (num_tokens > self.capacity[slots]).nonzero()[0]
        if len(rows) == 0:
            return None
        short = slots[rows]
        self._check_rows(short)
        wanted = -(-num_tokens[rows] // self.block_tokens)
        assert wanted.max() <= self.max_columns, "more tokens than max_model_len"
        held = self.num_columns[short]
        extra = wanted - held
        end = extra.cumsum()
        # The entries of one slot are held, held + 1, ...; the repeated term restarts the count.
        positions = np.arange(end[-1]) + (held - end + extra).repeat(extra)
        return Growth(short.repeat(extra), positions.astype(np.int32), end - 1)

    def append(self, growth: Growth, columns: NDArray[np.int32]) -> None:
        """Fill the entries of `growth` with `columns` (int32 [len(growth)])."""
        self.columns[growth.slots, growth.positions] = columns
        slots = growth.slots[growth.last]
        num_columns = growth.positions[growth.last] + 1
        self.num_columns[slots] = num_columns
        self.capacity[slots] = num_columns * self.block_tokens

    def advance(self, slot: int, count: int) -> NDArray[np.int32]:
        """Mark the next `count` columns as computed; the columns, int32 [count]."""
        start = int(self.num_committed[slot]) // self.block_tokens
        end = start + count
        assert end <= self.num_columns[slot], f"slot {slot} commits columns it does not hold"
        self.num_committed[slot] = end * self.block_tokens
        return self.columns[slot, start:end].copy()

    def _check_rows(self, slots: NDArray[np.int32]) -> None:
        assert self.owners[slots].all(), "a slot grows that is not open"
        order = np.arange(len(slots))
        self._rank[slots] = order
        assert (self._rank[slots] == order).all(), "a slot is named twice"

    def entries(self, slots: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """All filled entries of `slots`: their slots and positions, int32 [n] each."""
        counts = self.num_columns[slots]
        filled = np.arange(self.max_columns, dtype=np.int32) < counts[:, None]
        positions = np.nonzero(filled)[1].astype(np.int32)
        return np.repeat(slots, counts), positions

    def check(self) -> None:
        """Raise AssertionError where counts of a slot contradict each other."""
        assert (self.capacity == self.num_columns * self.block_tokens).all(), "capacity is off"
        assert (self.num_committed <= self.capacity).all(), "more committed than held"
        assert not self.num_columns[self.owners == 0].any(), "a closed slot holds columns"
