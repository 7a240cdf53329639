"""The unit's block pool: which blocks are free, and which sides of the others are owned."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Side
from muxcluster.kvcache.free_ids import IdStack

OWNER_BIT = {Side.LEFT: 1, Side.RIGHT: 2}
"""Ownership flags of a block: a left and a right owner may hold the same block (BROS §5)."""


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
        """Owner bits of every block, uint8 [num_blocks]; for checks only, not to be written."""
        return self._owners

    def allocate(self, owners: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Take one free block for each owner bit in `owners` (uint8 [n]); int32 [n]."""
        ids = self._stack.take(len(owners))
        self._owners[ids.astype(np.intp)] = owners
        return ids

    def share(self, ids: NDArray[np.int32], owner: int) -> None:
        """`owner` takes its side of blocks `ids` (int32 [n], distinct) that the other side owns."""
        places = ids.astype(np.intp)
        held = self._owners[places]
        assert not np.count_nonzero(held & owner), "a block is owned twice on a side"
        self._owners[places] = held | owner

    def drop(self, ids: NDArray[np.integer], owner: int) -> None:
        """`release` for one owner bit."""
        self.release(ids, np.uint8(owner))

    def release(self, ids: NDArray[np.integer], owners: NDArray[np.uint8] | np.uint8) -> None:
        """Drop ownership `owners` of blocks `ids` (int32 [n], distinct).

        owners: uint8 [n], or one for all. A block goes back to the free list when no side of it is
        owned any more.
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
