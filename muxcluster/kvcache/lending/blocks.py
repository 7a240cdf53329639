"""The lent blocks that no interactive sequence took yet, most empty first (BROS §5)."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.kvcache.free_ids import IdStack

NUM_TIERS = 8
"""Blocks are told apart by eighths of their places that are empty or saved."""


class LentBlocks:
    """A stack per tier; the emptiest tier that has blocks is taken from.

    A stack may hold entries whose block left meanwhile: `_tier` says in which stack a block stands
    now, as a bit (0 for none), and `_stacked` has a bit for every stack that has an entry of it, so
    that no block stands twice in one.
    """

    def __init__(self, num_blocks: int) -> None:
        self._tier = np.zeros(num_blocks, dtype=np.uint8)
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
        """`blocks` (int32 [n], distinct) may be taken from now on.

        tiers: ints [n], eighths of the block that are empty or saved, 0 to 7.
        """
        for tier in np.flatnonzero(np.bincount(tiers)).tolist():
            ours, bit = blocks[tiers == tier], np.uint8(1 << tier)
            self._tier[ours] = bit
            new = ours[self._stacked[ours] & bit == 0]
            self._stacked[new] |= bit
            self._stacks[tier].give(new[::-1])  # the last one leaves first
        self._count += len(blocks)

    def remove(self, blocks: NDArray[np.int32]) -> None:
        """`blocks`, all of them here, may not be taken any more."""
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
