"""The unit's blocks: how many each model holds, which are free, and which sides own the others.

Every decision about memory is made on the counts of `BlockLedger`, so a simulator without block
ids decides alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Side


@dataclass(frozen=True, slots=True)
class Shortage:
    """The answer "not now": nothing was taken because `blocks` blocks are missing."""

    blocks: int
    by_quota: bool  # the model's own quota lacks blocks; else only the pool is full


class BlockLedger:
    """Counts of one pool. Each block is free, used or cached by one model, or lent.

    Lowering a quota stops growth and never takes anything away (design.md §3).
    """

    def __init__(self, num_blocks: int, quotas: Mapping[str, int]) -> None:
        self.num_blocks = num_blocks
        self._quotas = dict(quotas)
        # Distinct blocks that live sequences hold, charged once to their model. Where sequences
        # lend, those of batch sequences are counted apart and no quota binds them; a block with two
        # owners is used by the interactive one (design.md §3).
        self._used = dict.fromkeys(quotas, 0)
        self._batch = dict.fromkeys(quotas, 0)
        self._cached = dict.fromkeys(quotas, 0)  # unread, in the prefix cache
        self.free = num_blocks
        self.evictable = 0  # cached blocks of all models
        self.lent = 0  # lent and not taken; charged to no model

    def quota(self, model: str) -> int:
        """Most blocks the model may use."""
        return self._quotas[model]

    def used(self, model: str) -> int:
        return self._used[model]

    def batch_used(self, model: str) -> int:
        """Blocks of the model's batch sequences, where these are counted apart."""
        return self._batch[model]

    def cached(self, model: str) -> int:
        """Unread blocks of the model in the prefix cache."""
        return self._cached[model]

    def set_quotas(self, quotas: Mapping[str, int]) -> None:
        """Replace the quotas of the models named. Raises ValueError for an unknown model."""
        for model, blocks in quotas.items():
            if model not in self._quotas or blocks < 0:
                raise ValueError(f"no quota of {blocks} blocks for model {model!r}")
        self._quotas.update(quotas)

    def quota_left(self, model: str) -> int:
        """Return the blocks the model may still be charged for, never negative."""
        return max(0, self._quotas[model] - self._used[model])

    def headroom(self, model: str, *, is_batch: bool = False) -> int:
        """Return the blocks the model may take now, evicting cached ones where needed."""
        if is_batch:
            return self.free + self.evictable
        return min(self.quota_left(model), self.free + self.evictable + self.lent)

    def shortage(
        self, model: str, blocks: int, batch: int = 0, *, num_returned: int = 0
    ) -> Shortage | None:
        """Return how many of `blocks` the model lacks now, None for none.

        batch: how many of them are for batch sequences. num_returned: lent blocks that an
        interactive sequence gets back beside them.
        """
        beyond_quota = blocks - batch + num_returned - self.quota_left(model)
        lent = self.lent - num_returned
        beyond_pool = max(batch, blocks - lent) - self.free - self.evictable
        missing = max(beyond_quota, beyond_pool)
        return Shortage(missing, by_quota=beyond_quota > 0) if missing > 0 else None

    def take(self, model: str, blocks: int, *, is_batch: bool = False) -> None:
        """Charge free blocks to the model."""
        self.free -= blocks
        (self._batch if is_batch else self._used)[model] += blocks

    def give(self, model: str, blocks: int, *, is_batch: bool = False) -> None:
        """Free used blocks."""
        self.take(model, -blocks, is_batch=is_batch)

    def cache(self, model: str, blocks: int, *, is_batch: bool = False) -> None:
        """Count used blocks as cached: they lost their last reader."""
        (self._batch if is_batch else self._used)[model] -= blocks
        self._cached[model] += blocks
        self.evictable += blocks

    def revive(self, model: str, blocks: int, *, is_batch: bool = False) -> None:
        """Count cached blocks as used: they got a reader."""
        self.cache(model, -blocks, is_batch=is_batch)

    def recharge(self, model: str, blocks: int, *, is_batch: bool) -> None:
        """Charge blocks of one class of the model to the other; is_batch: to batch sequences."""
        self._batch[model] += blocks if is_batch else -blocks
        self._used[model] -= blocks if is_batch else -blocks

    def lend(self, model: str, blocks: int, *, is_batch: bool = True) -> None:
        """Count used blocks of batch (or other) sequences as lent; negative: as used again."""
        (self._batch if is_batch else self._used)[model] -= blocks
        self.lent += blocks

    def free_lent(self, blocks: int) -> None:
        """Count lent blocks as free (negative: free ones as lent)."""
        self.lent -= blocks
        self.free += blocks

    def evict(self, model: str, blocks: int) -> None:
        """Free cached blocks."""
        self._cached[model] -= blocks
        self.evictable -= blocks
        self.free += blocks

    def check(self) -> None:
        """Raise AssertionError where a count is negative or the sums do not match."""
        used = (*self._used.values(), *self._batch.values())
        counts = (*used, *self._cached.values(), self.free, self.lent)
        assert min(counts) >= 0, f"a negative count in {counts}"
        assert sum(counts) == self.num_blocks, f"{sum(counts)} of {self.num_blocks} blocks"
        assert self.evictable == sum(self._cached.values()), "evictable is not the cached sum"


# A left and a right owner may hold the same block (BROS §5).
OWNER_BIT = {Side.LEFT: 1, Side.RIGHT: 2}
LEFT, RIGHT = OWNER_BIT[Side.LEFT], OWNER_BIT[Side.RIGHT]


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

    def turn(self, ids: NDArray[np.int32], owner: int) -> None:
        """Make `owner` the only owner of blocks `ids` (int32 [n], distinct) of the other side."""
        places = ids.astype(np.intp)
        assert (self._owners[places] == LEFT + RIGHT - owner).all(), "a block has another owner"
        self._owners[places] = owner

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
