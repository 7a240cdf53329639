"""The KV cache of one unit: every model's sequences in one pool, within quotas (DESIGN.md §3)."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Side, TableDelta
from muxcluster.kvcache.eviction import EvictionOrder
from muxcluster.kvcache.model import KvModel, Shortage
from muxcluster.kvcache.modelkv import ModelKv
from muxcluster.kvcache.pool import OWNER_BIT, BlockPool
from muxcluster.kvcache.quota import BlockLedger


class KvCache:
    """Bookkeeping of ONE unit's pool of `num_blocks` blocks; no tensor, no clock.

    A sequence (model, slot) is opened, grows in whole columns, commits columns that are fully
    computed, and is closed. Quotas count blocks; a model without one in `quotas` may use all.
    """

    def __init__(
        self,
        num_blocks: int,
        block_bytes: int,
        models: Sequence[KvModel],
        quotas: Mapping[str, int],
        *,
        has_block_ids: bool = True,
    ) -> None:
        """has_block_ids: False keeps counts (decisions) and no ids (addresses), for a simulator.

        Every answer is the same, but a TableDelta is empty.
        """
        self.num_blocks = num_blocks
        self._pool = BlockPool(num_blocks if has_block_ids else 0)
        self._models = {
            model.name: ModelKv(model, num_blocks, block_bytes, has_block_ids=has_block_ids)
            for model in models
        }
        self._ledger = BlockLedger(num_blocks, dict.fromkeys(self._models, num_blocks))
        self._ledger.set_quotas(quotas)
        self._order = EvictionOrder()
        self._per_column = {n: kv.columns.blocks_per_column for n, kv in self._models.items()}

    def block_tokens(self, model: str) -> int:
        """Tokens in one block of the model."""
        return self._models[model].block_tokens

    def open(self, model: str, slot: int, hashes: Sequence[bytes], side: Side = Side.LEFT) -> int:
        """Begin a sequence on a closed slot and attach the longest cached prefix.

        hashes: chain hashes of the prompt's full blocks (none to stay away from the cache).
        Returns the tokens attached, a multiple of block_tokens: no more than the quota allows.
        """
        kv = self._models[model]
        owner = OWNER_BIT[side]
        if not hashes:
            kv.sequences.open(slot, owner, kv.nothing.columns)
            return 0
        columns = self._affordable(kv, kv.prefix.match(hashes, owner))
        revived = columns[kv.columns.refs[columns] == 0]
        kv.sequences.open(slot, owner, columns)
        kv.columns.attach(columns)
        self._order.remove(((model, column) for column in revived.tolist()), owner)
        self._ledger.revive(model, len(revived) * kv.columns.blocks_per_column)
        return len(columns) * kv.block_tokens

    def _affordable(self, kv: ModelKv, columns: NDArray[np.int32]) -> NDArray[np.int32]:
        unread = kv.columns.refs[columns] == 0
        cost = np.cumsum(unread) * kv.columns.blocks_per_column
        left = self._ledger.quota_left(kv.model.name)
        return columns[: np.searchsorted(cost, left, side="right")]

    def grow(
        self, model: str, slots: NDArray[np.int32], num_tokens: NDArray[np.int32]
    ) -> TableDelta | Shortage:
        """Make room for num_tokens[i] tokens in slots[i] (open, distinct), all or nothing.

        Cached columns nobody reads are evicted where the free list is short. Returns the new
        table entries, or what is missing, with nothing changed.
        """
        kv = self._models[model]
        lack = kv.sequences.lack(slots, num_tokens)
        if lack is None:
            return kv.nothing
        blocks = lack.total * kv.columns.blocks_per_column
        shortage = self._ledger.shortage(model, blocks)
        if shortage is not None:
            return shortage
        if blocks > self._ledger.free:
            self._evict(blocks - self._ledger.free)
        self._ledger.take(model, blocks)
        return kv.extend(lack, self._pool)

    def lack(self, model: str, slots: NDArray[np.int32], num_tokens: NDArray[np.int32]) -> int:
        """Blocks that `grow` would take for the same slots and lengths."""
        kv = self._models[model]
        lack = kv.sequences.lack(slots, num_tokens)
        return 0 if lack is None else lack.total * kv.columns.blocks_per_column

    def commit(self, model: str, slot: int, hashes: Sequence[bytes]) -> None:
        """The next len(hashes) columns of the sequence are fully computed: publish them.

        They are immutable from now on. `hashes` continue the chain of those before.
        """
        self._models[model].commit(slot, hashes)

    def close(self, model: str, slot: int) -> None:
        """End the sequence: unpublished columns are freed, published ones stay while unread."""
        kv = self._models[model]
        owner = int(kv.sequences.owners[slot])
        columns, num_counted = kv.sequences.close(slot)
        per_column = kv.columns.blocks_per_column
        self._ledger.give(model, num_counted * per_column)
        if len(columns) == 0:
            return
        unread = columns[kv.columns.detach(columns)]
        # Deepest first: see EvictionOrder.
        kept = [self._retire(kv, column, owner) for column in unread[::-1].tolist()]
        freed = unread[::-1][~np.array(kept, dtype=np.bool_)]
        self._free(kv, freed)
        self._ledger.give(model, len(freed) * per_column)
        self._ledger.cache(model, (len(unread) - len(freed)) * per_column)

    def _retire(self, kv: ModelKv, column: int, owner: int) -> bool:
        """True where the column stays in the prefix cache."""
        holder = kv.prefix.retire(column, owner)
        if holder is None:
            return False
        if holder == column:
            self._order.add((kv.model.name, column), owner)
        else:
            self._order.touch((kv.model.name, holder), owner)
        return holder == column

    def _evict(self, blocks: int) -> None:
        """Free at least `blocks` blocks of cached columns."""
        victims: dict[str, list[int]] = {}
        per_column = self._per_column
        while blocks > 0:
            name, column = self._order.pop()
            victims.setdefault(name, []).append(column)
            blocks -= per_column[name]
        for name, columns in victims.items():
            kv = self._models[name]
            ids = np.array(columns, dtype=np.int32)
            for column, owner in zip(columns, kv.columns.owners[ids].tolist(), strict=True):
                kv.prefix.forget(column, owner)
            self._free(kv, ids)
            self._ledger.evict(name, len(columns) * per_column[name])

    def _free(self, kv: ModelKv, columns: NDArray[np.int32]) -> None:
        self._pool.release(*kv.columns.remove(columns))

    def tables(self, model: str, slots: NDArray[np.int32]) -> TableDelta:
        """The whole block tables of `slots`: after a prefix was attached, or after a restart."""
        return self._models[model].delta(slots)

    def capacity(self, model: str) -> NDArray[np.int32]:
        """Tokens that fit into each slot's columns now, int32 [max_seqs]; read-only live view."""
        return _read_only(self._models[model].sequences.capacity)

    def num_committed(self, model: str) -> NDArray[np.int32]:
        """Tokens attached or committed in each slot, int32 [max_seqs]; read-only live view."""
        return _read_only(self._models[model].sequences.num_committed)

    def headroom(self, model: str) -> int:
        """Blocks the model may still take now: min(quota - used, free + evictable)."""
        return self._ledger.headroom(model)

    def used(self, model: str) -> int:
        """Distinct blocks referenced by the model's live sequences."""
        return self._ledger.used(model)

    def cached(self, model: str) -> int:
        """The model's cached blocks that nobody references."""
        return self._ledger.cached(model)

    def quota(self, model: str) -> int:
        """Most blocks the model may use."""
        return self._ledger.quota(model)

    def set_quotas(self, quotas: Mapping[str, int]) -> None:
        """Change quotas; lowering one stops growth and evicts nothing.

        Raises ValueError for an unknown model or a negative quota.
        """
        self._ledger.set_quotas(quotas)

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return self._ledger.free

    @property
    def evictable(self) -> int:
        """Cached blocks of all models that nobody references."""
        return self._ledger.evictable

    def drop_cache(self) -> None:
        """Forget all cached columns that nobody reads."""
        self._evict(self.evictable)

    def check(self) -> None:
        """Raise AssertionError naming the first broken invariant."""
        self._pool.check()
        self._ledger.check()
        owners = np.zeros(self._pool.num_blocks, dtype=np.uint8)
        for kv in self._models.values():
            kv.check()
            self._check_counts(kv)
            live = np.flatnonzero(kv.columns.owners)
            blocks = kv.columns.blocks[live].ravel()
            bits = np.repeat(kv.columns.owners[live], kv.columns.num_ids)
            for bit in OWNER_BIT.values():
                ours = blocks[bits == bit]
                assert len(np.unique(ours)) == len(ours), "a block is owned twice on a side"
                assert not (owners[ours] & bit).any(), "two models own a block on the same side"
                owners[ours] |= bit
        assert (owners == self._pool.owners).all(), "blocks leaked: the pool has other owners"
        if self._pool.num_blocks:
            assert self._pool.free == self._ledger.free, "free list and ledger differ"

    def _check_counts(self, kv: ModelKv) -> None:
        name, per_column = kv.model.name, kv.columns.blocks_per_column
        live = kv.columns.owners != 0
        read = kv.columns.refs > 0
        used, cached = np.count_nonzero(read), np.count_nonzero(live & ~read)
        used += int((kv.sequences.num_columns - kv.sequences.num_named).sum())
        assert used * per_column == self.used(name), f"{name}: used blocks are miscounted"
        assert cached * per_column == self.cached(name), f"{name}: cached blocks are miscounted"
        published = {int(c) for bit in OWNER_BIT.values() for c in kv.prefix.published(bit)}
        evictable = {column for model, column in self._order if model == name}
        unread = set(np.flatnonzero(live & ~read).tolist())
        assert evictable == unread, f"{name}: unread columns and the eviction order differ"
        assert unread <= published, f"{name}: a cached column cannot be found"


def _read_only(array: NDArray[np.int32]) -> NDArray[np.int32]:
    view = array.view()
    view.flags.writeable = False
    return view
