"""What is lent: columns of a model, blocks to be taken, host memory, and copies between them."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.kvcache.pool import IdStack

NO_BLOCK = -1  # in a lent column: the block is gone; its tokens, if any, are in its host block


class LentColumns:
    """Lent columns of one model's sequences. `LentState` alone changes it."""

    def __init__(self, max_seqs: int, shape: tuple[int, int], most_empty: int) -> None:
        """shape: columns of the model, and blocks in each."""
        num_columns, _ = shape
        # Lent and restoring columns without tokens, and their limit: host memory bounds others.
        self.num_empty, self.most_empty = 0, most_empty
        # By sequence:
        # lent columns at the end of its table, with kept ones among them; 0 for a whole sequence
        self.counts = np.zeros(max_seqs, dtype=np.int32)
        self.costs = np.zeros(max_seqs, dtype=np.int32)  # blocks of them that are gone or taken
        self.num_saving = np.zeros(max_seqs, dtype=np.int16)  # running jobs that save its tokens
        self.is_restoring = np.zeros(max_seqs, dtype=np.bool_)  # a running job restores it
        self.is_spoiled = np.zeros(max_seqs, dtype=np.bool_)  # a save of it failed
        # By column, valid for lent ones:
        self.rows = np.zeros(num_columns, dtype=np.int32)  # row of its sequence
        self.filled = np.zeros(num_columns, dtype=np.int32)  # tokens in it
        # not lent although columns after it were: it lies over tokens of others
        self.is_kept = np.zeros(num_columns, dtype=np.bool_)
        self.host_blocks = np.zeros(shape, dtype=np.int32)  # of each block, where it has tokens

    @property
    def spare_empty(self) -> int:
        """How many more columns without tokens may be lent."""
        return self.most_empty - self.num_empty

    def is_busy(self, row: int) -> bool:
        """True while copies of the sequence are on their way, or lost."""
        return bool(self.num_saving[row] or self.is_restoring[row] or self.is_spoiled[row])

    def places(
        self, columns: NDArray[np.int32], block_tokens: int, *, is_left: bool
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the first filled place and the end of lent `columns` of one side, int32 [n].

        A full column has the same, whichever side filled it.
        """
        filled = self.filled[columns]
        if is_left:
            return np.zeros_like(filled), filled
        return block_tokens - filled, np.full_like(filled, block_tokens)

    def host_blocks_of(self, columns: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the host blocks that lent `columns` hold, int32 [n]."""
        return self.host_blocks[columns[self.filled[columns] > 0]].ravel()

    def count_empty(self, columns: NDArray[np.int32]) -> int:
        """Count those of lent `columns` (int32 [n]) that have no tokens."""
        return int(np.count_nonzero(self.filled[columns] == 0))

    def lend(
        self,
        row: int,
        columns: NDArray[np.int32],
        filled: NDArray[np.int64],
        is_kept: NDArray[np.bool_],
    ) -> None:
        """Lend the last whole `columns` of a sequence, all [n]."""
        self.rows[columns], self.filled[columns] = row, filled
        self.is_kept[columns] = is_kept
        self.counts[row] += len(columns)
        self.num_empty += int(np.count_nonzero(filled == 0))

    def forget(self, row: int) -> None:
        """Forget a sequence that is closed."""
        self.counts[row] = self.costs[row] = self.num_saving[row] = 0
        self.is_spoiled[row] = False


class ColumnsOverLent:
    """The columns of one model's left sequences that lie over lent blocks, one entry each, [n]."""

    def __init__(self, max_seqs: int, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._ends = np.zeros(max_seqs, dtype=np.int32)
        self.rows = np.empty(0, dtype=np.int32)  # whose column
        self.positions = np.empty(0, dtype=np.int32)  # where in its table
        self.columns = np.empty(0, dtype=np.int32)
        # Tokens that the column may hold before more must be saved, a lower bound. An entry stays
        # until they are passed or its sequence ends, also when the lenders are gone.
        self.safe = np.empty(0, dtype=np.int32)

    def __len__(self) -> int:
        return len(self.rows)

    def add(
        self, rows: NDArray[np.int32], positions: NDArray[np.int32], columns: NDArray[np.int32]
    ) -> None:
        """Add entries in which no token is known to be safe."""
        self.rows = np.concatenate((self.rows, rows))
        self.positions = np.concatenate((self.positions, positions))
        self.columns = np.concatenate((self.columns, columns))
        self.safe = np.concatenate((self.safe, np.zeros(len(rows), dtype=np.int32)))

    def due(
        self, rows: NDArray[np.int32], ends: NDArray[np.int32]
    ) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
        """Find the entries that need saving when rows[i] is about to hold ends[i] tokens.

        Returns their indices [n] and the tokens their columns will hold, int32 [n].
        """
        self._ends[rows] = ends
        ahead = self._ends[self.rows] - self.positions * self._block_tokens
        self._ends[rows] = 0
        held = np.minimum(ahead, self._block_tokens)
        due = (held > self.safe).nonzero()[0]
        return due, held[due]

    def narrow(self, entries: NDArray[np.intp], safe: NDArray[np.int32]) -> None:
        """Set the safe tokens of `entries` (distinct, [n]); drop those that are wholly safe."""
        self.safe[entries] = safe
        if (safe == self._block_tokens).any():
            self.keep(self.safe < self._block_tokens)

    def forget(self, columns: NDArray[np.int32]) -> None:
        """Drop the entries of `columns` (int32 [n])."""
        if len(self.columns):
            self.keep(~np.isin(self.columns, columns))

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Drop the entries where `mask` (bool [n]) is False."""
        self.rows, self.positions = self.rows[mask], self.positions[mask]
        self.columns, self.safe = self.columns[mask], self.safe[mask]


# int64 [n, 3]: first slot of the source, first slot of the destination, number of slots.
Runs = NDArray[np.int64]
NO_RUNS: Runs = np.empty((0, 3), dtype=np.int64)
NUM_TIERS = 8  # blocks are sorted by eighths of their places that are empty or saved


class TakeableBlocks:
    """Lent blocks that no left sequence took yet: one stack a tier, the emptiest tier first.

    A stack may hold stale entries of blocks that were removed since.
    """

    def __init__(self, num_blocks: int) -> None:
        self._tier = np.zeros(num_blocks, dtype=np.uint8)  # bit of the block's tier, 0: not here
        # A bit for every stack with an entry of the block, so that none has two.
        self._stacked = np.zeros(num_blocks, dtype=np.uint8)
        self._stacks = [IdStack(num_blocks, is_full=False) for _ in range(NUM_TIERS)]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def ids(self) -> NDArray[np.intp]:
        """All of them, ascending."""
        return np.flatnonzero(self._tier)

    def add(self, blocks: NDArray[np.int32], tiers: NDArray[np.integer]) -> None:
        """Add `blocks` (int32 [n], distinct).

        tiers: ints [n], eighths of each block that are empty or saved, 0 to 7.
        """
        for tier in np.flatnonzero(np.bincount(tiers)).tolist():
            ours, bit = blocks[tiers == tier], np.uint8(1 << tier)
            self._tier[ours] = bit
            new = ours[self._stacked[ours] & bit == 0]
            self._stacked[new] |= bit
            self._stacks[tier].give(new[::-1])  # the last one leaves first
        self._count += len(blocks)

    def remove(self, blocks: NDArray[np.int32]) -> None:
        """Remove `blocks`, which are all here."""
        self._tier[blocks] = 0
        self._count -= len(blocks)

    def take(self, count: int) -> NDArray[np.int32]:
        """Remove and return `count` blocks, int32 [count]; the caller knows they are there."""
        parts: list[NDArray[np.int32]] = []
        for tier in reversed(range(NUM_TIERS)):
            stack, bit = self._stacks[tier], np.uint8(1 << tier)
            while count > 0 and len(stack):
                top = stack.take(min(count, len(stack)))
                self._stacked[top] &= ~bit
                parts.append(top[self._tier[top] == bit])
                count -= len(parts[-1])
        assert count == 0, f"{count} lent blocks are missing"
        taken = np.concatenate(parts)
        self.remove(taken)
        return taken

    def check(self) -> None:
        """Raise AssertionError where count, tiers and stacks disagree."""
        assert np.count_nonzero(self._tier) == self._count, "lent blocks are miscounted"
        assert (self._stacked & self._tier == self._tier).all(), "a lent block cannot be found"
        for tier, stack in enumerate(self._stacks):
            stack.check()
            assert (self._stacked[stack.ids] & (1 << tier)).all(), "a stacked block is unmarked"


class HostBlocks:
    """Blocks of host memory, laid out like those of the pool, that keep saved tokens.

    Each is free, held, or dying: given back while a running job still copies to it or from it, and
    free when that job has ended.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._stack = IdStack(num_blocks)
        self._num_jobs = np.zeros(num_blocks, dtype=np.int16)
        self._is_dying = np.zeros(num_blocks, dtype=np.bool_)

    @property
    def free(self) -> int:
        """Blocks that may be taken now."""
        return len(self._stack)

    @property
    def dying(self) -> NDArray[np.intp]:
        """Blocks given back that a running job still uses, [n]."""
        return np.flatnonzero(self._is_dying)

    def take(self, count: int) -> NDArray[np.int32]:
        """Hold `count` free blocks, int32 [count]; the caller has checked that they are there."""
        return self._stack.take(count)

    def give(self, blocks: NDArray[np.int32]) -> None:
        """Give back held `blocks` (distinct), at once or when their running job has ended."""
        is_busy = self._num_jobs[blocks] > 0
        if not np.count_nonzero(is_busy):
            self._stack.give(blocks)
            return
        self._is_dying[blocks[is_busy]] = True
        self._stack.give(blocks[~is_busy])

    def touch(self, blocks: NDArray[np.int32]) -> None:
        """Note that a job which is about to run copies into `blocks` (distinct)."""
        self._num_jobs[blocks.astype(np.intp)] += 1

    def settle(self, blocks: NDArray[np.int32]) -> None:
        """Note that the job which touched `blocks` (distinct) has ended."""
        places = blocks.astype(np.intp)
        num_jobs = self._num_jobs[places] - 1
        self._num_jobs[places] = num_jobs
        is_dying = self._is_dying[places]
        if not np.count_nonzero(is_dying):
            return
        done = blocks[is_dying & (num_jobs == 0)]
        self._is_dying[done] = False
        self._stack.give(done)

    def check(self, held: NDArray[np.int32]) -> None:
        """Raise AssertionError unless free, dying and `held` blocks are all blocks, each once."""
        assert (self._num_jobs >= 0).all(), "a host block is settled more often than touched"
        assert (self._num_jobs[self._is_dying] > 0).all(), "a dying host block that no job uses"
        assert not self._num_jobs[self._stack.ids].any(), "a running job uses a free host block"
        every = np.concatenate((self._stack.ids, self.dying, held))
        assert np.array_equal(np.sort(every), np.arange(self.num_blocks)), (
            "host blocks leaked or doubled"
        )


def runs(
    sources: NDArray[np.integer],
    destinations: NDArray[np.integer],
    block_tokens: int,
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
) -> Runs:
    """Return copies of places starts[i] .. ends[i]-1 of block sources[i] to destinations[i].

    All integers [n], blocks of the pool or of host memory; empty ranges are left out.
    """
    filled = ends > starts
    if np.count_nonzero(filled) < len(filled):
        sources, destinations = sources[filled], destinations[filled]
        starts, ends = starts[filled], ends[filled]
    copies = np.empty((len(starts), 3), dtype=np.int64)
    copies[:, 0] = sources * np.int64(block_tokens) + starts
    copies[:, 1] = destinations * np.int64(block_tokens) + starts
    copies[:, 2] = ends - starts
    return copies
