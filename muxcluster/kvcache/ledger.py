"""Counts of blocks by model: quotas, use, cache and lending, without a block id.

Every decision about memory is made on these counts, so a simulator without block ids decides alike.
"""

from collections.abc import Mapping

from muxcluster.kvcache.model import Shortage


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
        """Blocks charged to the model."""
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
