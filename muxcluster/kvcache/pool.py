"""The unit's block pool: which blocks are free, and which sides own the others."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Side

# A left and a right owner may hold the same block (BROS §5).
OWNER_BIT = {Side.LEFT: 1, Side.RIGHT: 2}


class IdStack:
    """A stack of free integer ids 0 .. size-1, taken and given back in arrays."""

    def __init__(self, size: int, *, is_full: bool = True) -> None:
        """is_full: all are free at the start, the lowest on top; False: none is."""
        self._ids = np.arange(size - 1, -1, -1, dtype=np.int32)
        self._count = size if is_full else 0

    def __len__(self) -> int:
        return self._count

    @property
    def ids(self) -> NDArray[np.int32]:
        """Free ids, int32 [len(self)], in no useful order; a view."""
        return self._ids[: self._count]

    def take(self, count: int) -> NDArray[np.int32]:
        """Remove and return `count` ids, int32 [count]; the caller knows they are there."""
        assert 0 <= count <= self._count, f"{count} ids wanted, {self._count} free"
        rest = self._count - count
        taken = self._ids[rest : self._count][::-1].copy()
        self._count = rest
        return taken

    def give(self, ids: NDArray[np.integer]) -> None:
        """Add ids (int32 [n]) that are not free; `take` hands them out in their order."""
        end = self._count + len(ids)
        assert end <= len(self._ids), "more ids are free than there are"
        self._ids[self._count : end] = ids[::-1]
        self._count = end

    def check(self) -> None:
        """Raise AssertionError where an id is free twice."""
        assert len(np.unique(self.ids)) == self._count, "an id is on the free list twice"


class BlockPool:
    """Free list and per-side ownership of `num_blocks` blocks that every model may use.

    Invariant: a block is on the free list exactly when neither side of it is owned.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._stack = IdStack(num_blocks)
        self._owners = np.zeros(num_blocks, dtype=np.uint8)

    @property
    def free(self) -> int:
        """Blocks that nobody owns."""
        return len(self._stack)

    @property
    def owners(self) -> NDArray[np.uint8]:
        """Owner bits of every block, uint8 [num_blocks], read-only by contract."""
        return self._owners

    def allocate(self, owners: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Take one free block for each owner bit in `owners` (uint8 [n]); int32 [n]."""
        ids = self._stack.take(len(owners))
        self._owners[ids.astype(np.intp)] = owners
        return ids

    def share(self, ids: NDArray[np.int32], owner: int) -> None:
        """Give `owner` its side of blocks `ids` (int32 [n], distinct) that the other side owns."""
        places = ids.astype(np.intp)
        held = self._owners[places]
        assert not np.count_nonzero(held & owner), "a block is owned twice on a side"
        self._owners[places] = held | owner

    def drop(self, ids: NDArray[np.integer], owner: int) -> None:
        """Drop ownership of one side: see `release`."""
        self.release(ids, np.uint8(owner))

    def release(self, ids: NDArray[np.integer], owners: NDArray[np.uint8] | np.uint8) -> None:
        """Drop ownership `owners` of blocks `ids` (int32 [n], distinct).

        owners: uint8 [n], or one for all. A block without owners goes back to the free list.
        """
        places = ids.astype(np.intp)  # once: numpy would convert at each use
        rest = self._owners[places] ^ owners
        assert not np.count_nonzero(rest & owners), "a block is released by a side that lacks it"
        self._owners[places] = rest
        self._stack.give(ids if not np.count_nonzero(rest) else ids[rest == 0])

    def check(self) -> None:
        """Raise AssertionError where the free list and the ownership flags disagree."""
        self._stack.check()
        free = np.ones(self.num_blocks, dtype=np.bool_)
        free[np.flatnonzero(self._owners)] = False
        assert free[self._stack.ids].all(), "an owned block is on the free list"
        assert np.count_nonzero(free) == self.free, "a block without owner is not on the free list"
