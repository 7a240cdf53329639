"""The lent blocks that no interactive sequence took yet, most empty first."""

import numpy as np
from numpy.typing import NDArray

FULL, PARTLY_EMPTY = 1, 2


class LentBlocks:
    """Two stacks: blocks with nothing left to save at their left end come before full ones.

    `tier` says where a block stands now, 0 for nowhere; a stack may hold entries whose block left
    meanwhile, and `is_stacked` has a bit per stack, so no block stands twice in the same one.
    """

    def __init__(self, num_blocks: int) -> None:
        self._tier = np.zeros(num_blocks, dtype=np.uint8)
        self._is_stacked = np.zeros(num_blocks, dtype=np.uint8)
        self._stacks = {tier: _Stack(num_blocks) for tier in (PARTLY_EMPTY, FULL)}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def ids(self) -> NDArray[np.intp]:
        """All of them, ascending."""
        return np.flatnonzero(self._tier)

    def add(self, blocks: NDArray[np.int32], is_empty: NDArray[np.bool_]) -> None:
        """`blocks` (int32 [n], distinct) may be taken from now on.

        is_empty: bool [n], True where the first places from the left hold nothing unsaved.
        """
        for tier in self._stacks:
            ours = blocks[is_empty == (tier == PARTLY_EMPTY)]
            self._tier[ours] = tier
            new = ours[self._is_stacked[ours] & tier == 0]
            self._is_stacked[new] |= tier
            self._stacks[tier].push(new)
        self._count += len(blocks)

    def remove(self, blocks: NDArray[np.int32]) -> None:
        """`blocks`, all of them here, may not be taken any more."""
        self._tier[blocks] = 0
        self._count -= len(blocks)

    def take(self, count: int) -> NDArray[np.int32]:
        """Remove and return `count` blocks, int32 [count]; the caller knows they are there."""
        parts: list[NDArray[np.int32]] = []
        for tier, stack in self._stacks.items():
            while count > 0 and len(stack):
                top = stack.pop(count)
                self._is_stacked[top] &= ~np.uint8(tier)
                parts.append(top[self._tier[top] == tier])
                count -= len(parts[-1])
        assert count == 0, f"{count} lent blocks are missing"
        taken = np.concatenate(parts)
        self.remove(taken)
        return taken

    def check(self) -> None:
        """Raise AssertionError where count, tiers and stacks disagree."""
        assert np.count_nonzero(self._tier) == self._count, "lent blocks are miscounted"
        assert (self._is_stacked & self._tier == self._tier).all(), "a lent block cannot be found"
        for tier, stack in self._stacks.items():
            assert len(np.unique(stack.ids)) == len(stack), "a lent block is stacked twice"
            assert (self._is_stacked[stack.ids] & tier).all(), "a stacked block is not marked"


class _Stack:
    def __init__(self, size: int) -> None:
        self._ids = np.zeros(size, dtype=np.int32)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def ids(self) -> NDArray[np.int32]:
        return self._ids[: self._count]

    def push(self, ids: NDArray[np.int32]) -> None:
        end = self._count + len(ids)
        self._ids[self._count : end] = ids
        self._count = end

    def pop(self, count: int) -> NDArray[np.int32]:
        rest = max(0, self._count - count)
        top = self._ids[rest : self._count][::-1].copy()
        self._count = rest
        return top
