"""What lending, saving and restoring work on together: the blocks of one unit's pool."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Side
from muxcluster.kvcache.ledger import BlockLedger
from muxcluster.kvcache.lending.blocks import NUM_TIERS, LentBlocks
from muxcluster.kvcache.lending.host_blocks import HostFrames
from muxcluster.kvcache.lending.lenders import RightOwners
from muxcluster.kvcache.lending.running_jobs import RunningJobs
from muxcluster.kvcache.model_kv import ModelKv
from muxcluster.kvcache.pool import OWNER_BIT, BlockPool

Chosen = NDArray[np.bool_] | slice
"""Some of an array: bool [n], or all of it."""
LEFT, RIGHT = OWNER_BIT[Side.LEFT], OWNER_BIT[Side.RIGHT]
BOTH = LEFT | RIGHT


class Sharing:
    """State of the blocks that sequences lend (BROS §5)."""

    def __init__(
        self,
        pool: BlockPool,
        ledger: BlockLedger,
        models: Mapping[str, ModelKv],
        num_host_blocks: int,
        *,
        is_on: bool,
    ) -> None:
        """is_on: False where no block is ever lent."""
        num_blocks = pool.num_blocks if is_on else 0
        self.pool, self.ledger = pool, ledger
        self.models = tuple(models.values())
        self.index = {name: i for i, name in enumerate(models)}
        self.frames = HostFrames(num_host_blocks if is_on else 0)
        self.lent = LentBlocks(num_blocks)
        self.rights = RightOwners(num_blocks)
        self.jobs = RunningJobs()
        self.is_on = is_on

    def is_batch(self, owner: int) -> bool:
        """True where blocks of the owner bit are counted apart, without a quota."""
        return self.is_on and owner == RIGHT

    def lend(self, kv: ModelKv, blocks: NDArray[np.int32]) -> None:
        """`blocks` (int32 [n]), right-owned by `kv` alone and in lent columns, may be taken."""
        unsaved = (self.rights.ends[blocks] - self.rights.saved[blocks]).astype(np.int32)
        self.lent.add(blocks, (kv.block_tokens - unsaved) * NUM_TIERS // kv.block_tokens)
        self.count_lent(kv, blocks)

    def count_lent(self, kv: ModelKv, blocks: NDArray[np.int32], by: int = 1) -> None:
        """`blocks` (int32 [n]) of `kv` are charged to nobody (by=1), or to their lenders (-1)."""
        num_left = int(np.count_nonzero(self.rights.is_left[blocks]))
        self.ledger.lend(kv.model.name, by * (len(blocks) - num_left))
        self.ledger.lend(kv.model.name, by * num_left, is_batch=False)

    def allocate(self, owners: NDArray[np.uint8]) -> NDArray[np.int32]:
        """A block for each owner bit (uint8 [n]): free ones, and lent ones for left owners."""
        num_free = self.pool.free
        if len(owners) <= num_free:
            return self.pool.allocate(owners)
        order = np.argsort(owners == LEFT, kind="stable")
        taken = self.lent.take(len(owners) - num_free)
        self.pool.share(taken, LEFT)
        self.raise_costs(taken, 1)
        ids = np.empty(len(owners), dtype=np.int32)
        ids[order[:num_free]] = self.pool.allocate(owners[order[:num_free]])
        ids[order[num_free:]] = taken
        return ids

    def take_back(self, blocks: NDArray[np.int32]) -> None:
        """The left owners of `blocks` (int32 [n], counted as free) have gone: lent again.

        Those that a running job restores from belong to their lender until it has ended.
        """
        self.ledger.free_lent(-len(blocks))
        is_source = self.rights.is_source[blocks]
        self.raise_costs(blocks[~is_source], -1)
        for kv, ours in self.by_model(blocks):
            theirs = blocks[ours]
            self.count_lent(kv, theirs, -1)
            self.lend(kv, theirs[~is_source[ours]])

    def leave(self, kv: ModelKv, blocks: NDArray[np.int32]) -> None:
        """Left sequences of `kv` give up `blocks` (int32 [n]): they are free, or lent again."""
        shared = blocks[self.pool.owners[blocks] == BOTH]
        self.pool.drop(blocks, LEFT)
        self.ledger.give(kv.model.name, len(blocks))
        if len(shared):
            self.take_back(shared)

    def columns_of(self, kv: ModelKv, blocks: NDArray[np.int32]) -> NDArray[np.int32]:
        """The columns of `kv` that lent `blocks` (int32 [n]) belong to, int32 [n]."""
        return (self.rights.cells[blocks] // kv.columns.blocks_per_column).astype(np.int32)

    def by_model(self, blocks: NDArray[np.int32]) -> list[tuple[ModelKv, Chosen]]:
        """The lenders' models of lent `blocks` (int32 [n]) and which blocks are theirs."""
        models = self.rights.models[blocks]
        present = np.bincount(models).nonzero()[0].tolist()
        if len(present) == 1:
            return [(self.models[present[0]], slice(None))]
        return [(self.models[index], models == index) for index in present]

    def raise_costs(self, blocks: NDArray[np.int32], by: int) -> None:
        """A left owner came to (by=1) or left (by=-1) lent `blocks` (int32 [n])."""
        for kv, ours in self.by_model(blocks):
            slots = kv.lent.slots[self.columns_of(kv, blocks[ours])]
            np.add.at(kv.lent.costs, slots, by)
