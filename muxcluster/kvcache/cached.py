"""Columns that nobody reads: which are kept for the prefix cache, and which are given up when."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from muxcluster.kvcache.eviction import EvictionOrder
from muxcluster.kvcache.ledger import BlockLedger
from muxcluster.kvcache.model_kv import ModelKv
from muxcluster.kvcache.pins import Pins
from muxcluster.kvcache.pool import BlockPool


class CachedColumns:
    """Puts columns into the eviction order and takes them out of it, over all models of a unit."""

    def __init__(
        self,
        pool: BlockPool,
        ledger: BlockLedger,
        models: Mapping[str, ModelKv],
        order: EvictionOrder,
    ) -> None:
        self._pool, self._ledger = pool, ledger
        self._models, self._order = models, order
        self.pins = Pins(models, order)

    def retire(
        self, kv: ModelKv, columns: NDArray[np.int32], owner: int, *, is_batch: bool
    ) -> None:
        """The last reader of `columns` (int32 [n], deepest first) left: keep or free them."""
        leaving = columns.tolist()
        holders = kv.prefix.retire(leaving, owner)
        pinned = self.pins.among(kv, leaving, owner)
        self._order.release(kv.model.name, leaving, holders, owner, pinned)
        is_freed = [holder != column for column, holder in zip(leaving, holders, strict=True)]
        freed = columns[np.array(is_freed, dtype=np.bool_)]
        if len(freed):
            self._free(kv, freed)
        name, per_column = kv.model.name, kv.columns.blocks_per_column
        self._ledger.give(name, len(freed) * per_column, is_batch=is_batch)
        num_kept = len(columns) - len(freed)
        self._ledger.cache(name, num_kept * per_column, is_batch=is_batch)

    def make_room(self, blocks: int) -> None:
        """Evict until `blocks` blocks are free, or nothing is left to evict."""
        missing = blocks - self._ledger.free
        if missing > 0:
            self.evict(min(missing, self._ledger.evictable))

    def evict(self, blocks: int) -> None:
        """Free at least `blocks` blocks of cached columns."""
        sizes = {name: kv.columns.blocks_per_column for name, kv in self._models.items()}
        for name, columns in self._order.take(blocks, sizes).items():
            kv = self._models[name]
            ids = np.array(columns, dtype=np.int32)
            kv.prefix.forget(columns, kv.columns.owners[ids].tolist())
            self._free(kv, ids)
            self._ledger.evict(name, len(columns) * kv.columns.blocks_per_column)

    def _free(self, kv: ModelKv, columns: NDArray[np.int32]) -> None:
        self._pool.release(*kv.columns.remove(columns))
