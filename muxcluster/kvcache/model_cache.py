"""One model's part of a unit's KV cache: everything that concerns its sequences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import SharedPrefixes, Side, SlotCopies, TableDelta
from muxcluster.kvcache.cached import CachedColumns
from muxcluster.kvcache.eviction import EvictionOrder
from muxcluster.kvcache.lending.lend import Lending
from muxcluster.kvcache.lending.restore import Restoring
from muxcluster.kvcache.lending.save import Saving
from muxcluster.kvcache.lending.state import Sharing
from muxcluster.kvcache.model import Shortage
from muxcluster.kvcache.model_kv import ModelKv
from muxcluster.kvcache.pool import OWNER_BIT


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What the models of a unit share: lent blocks, the prefix cache, and who works on them."""

    sharing: Sharing
    cached: CachedColumns
    order: EvictionOrder
    lending: Lending
    saving: Saving
    restoring: Restoring


class ModelCache:
    """Sequences of one model in the unit's pool, addressed by slot.

    A sequence is opened on a slot, grows in whole columns, commits columns that are fully computed,
    and is closed.

    block_bytes, block_tokens: size of a block, and the tokens of the model that fit into one.
    capacity: tokens that fit into each slot's columns now. num_committed: tokens attached or
    committed in each slot. num_lent: lent columns of each slot, 0 for a whole one. All int32
    [max_seqs], live and read-only.
    """

    def __init__(self, kv: ModelKv, parts: Parts) -> None:
        self._kv = kv
        self._ledger = parts.sharing.ledger
        self._sharing = parts.sharing
        self._cached = parts.cached
        self._order = parts.order
        self._lending = parts.lending
        self._saving = parts.saving
        self._restoring = parts.restoring
        self.name = kv.model.name
        self.block_bytes = kv.block_bytes
        self.block_tokens = kv.block_tokens
        self.capacity = kv.capacity
        self.num_committed = kv.num_committed
        self.num_lent = kv.num_lent

    @property
    def used(self) -> int:
        """Distinct blocks referenced by live (bidirectional: left) sequences."""
        return self._ledger.used(self.name)

    @property
    def batch_used(self) -> int:
        """Distinct blocks that right sequences alone hold; 0 if not bidirectional."""
        return self._ledger.batch_used(self.name)

    @property
    def num_cached(self) -> int:
        """Cached blocks that no sequence references."""
        return self._ledger.cached(self.name)

    @property
    def quota(self) -> int:
        """Most blocks the model may use."""
        return self._ledger.quota(self.name)

    def headroom(self, side: Side = Side.LEFT) -> int:
        """Blocks that growth on `side` may still take now: min(quota - used, free + evictable).

        Bidirectional: lent ones too on the left side, and no quota on the right one.
        """
        is_batch = self._sharing.is_batch(OWNER_BIT[side])
        return self._ledger.headroom(self.name, is_batch=is_batch)

    def finds(self, hashes: Sequence[bytes], side: Side) -> bool:
        """True where a cached prefix stands at the beginning of the chain `hashes`."""
        return self._kv.prefix.has_first(hashes, OWNER_BIT[side])

    def open(self, slot: int, hashes: Sequence[bytes], side: Side = Side.LEFT) -> int:
        """Begin a sequence on a closed slot and attach the longest cached prefix.

        hashes: chain hashes of the prompt's full blocks (none to stay away from the cache).
        Returns the tokens attached, whole blocks: no more than the quota allows.
        """
        kv, owner = self._kv, OWNER_BIT[side]
        if not hashes:
            kv.sequences.open(slot, owner, kv.nothing.columns)
            return 0
        columns, is_batch = kv.prefix.match(hashes, owner), self._sharing.is_batch(owner)
        if not is_batch:
            columns = self._affordable(columns)
        revived = columns[kv.columns.refs[columns] == 0]
        kv.sequences.open(slot, owner, columns)
        kv.columns.attach(columns)
        self._order.remove(((self.name, column) for column in revived.tolist()), owner)
        blocks = len(revived) * kv.columns.blocks_per_column
        self._ledger.revive(self.name, blocks, is_batch=is_batch)
        return len(columns) * kv.block_tokens

    def _affordable(self, columns: NDArray[np.int32]) -> NDArray[np.int32]:
        """The first of `columns` that the quota allows to be read."""
        store = self._kv.columns
        cost = np.cumsum(store.refs[columns] == 0) * store.blocks_per_column
        return columns[: cost.searchsorted(self._ledger.quota_left(self.name), side="right")]

    def grow(
        self, slots: NDArray[np.int32], num_tokens: NDArray[np.int32]
    ) -> TableDelta | Shortage:
        """Make room for num_tokens[i] tokens in slots[i] (open, distinct), all or nothing.

        Cached columns nobody reads are evicted where blocks are short; left sequences take lent
        ones then. `slots` are whole. Returns new table entries, or what is missing, unchanged.
        """
        kv = self._kv
        lack = kv.sequences.lack(slots, num_tokens)
        if lack is None:
            return kv.nothing
        blocks = lack.total * kv.columns.blocks_per_column
        batch = self._lending.batch_part(kv, lack)
        shortage = self._ledger.shortage(self.name, blocks, batch)
        if shortage is not None:
            return shortage
        self._cached.make_room(blocks)
        return self._lending.extend(kv, lack, batch)

    def lack(self, slots: NDArray[np.int32], num_tokens: NDArray[np.int32]) -> int:
        """Blocks that `grow` would take for the same slots and lengths."""
        lack = self._kv.sequences.lack(slots, num_tokens)
        return 0 if lack is None else lack.total * self._kv.columns.blocks_per_column

    def commit(self, slot: int, hashes: Sequence[bytes]) -> None:
        """Publish the next len(hashes) columns of the sequence, which are fully computed.

        They are immutable then. `hashes` continue the chain of those before.
        """
        self._kv.commit(slot, hashes)

    def close(self, slot: int) -> None:
        """End the sequence: unpublished columns are freed, published ones stay while unread.

        It is in no running job; lent or half saved it may be.
        """
        kv = self._kv
        owner = int(kv.sequences.owners[slot])
        is_batch, shared = self._sharing.is_batch(owner), self._lending.close(kv, slot)
        columns, num_counted = kv.sequences.close(slot)
        self._ledger.give(self.name, num_counted * kv.columns.blocks_per_column)
        if len(columns) == 0:
            return
        unread = columns[kv.columns.detach(columns)]
        # Deepest first: see EvictionOrder.
        self._cached.retire(kv, unread[::-1], owner, is_batch=is_batch)
        if len(shared):
            self._sharing.take_back(shared)

    def tables(self, slots: NDArray[np.int32]) -> TableDelta:
        """The whole block tables of `slots`: after a prefix was attached, or after a restart."""
        return self._kv.delta(slots)

    def shared_prefixes(self, slots: NDArray[np.int32]) -> SharedPrefixes | None:
        """The computed columns that `slots` (distinct, open) have in common, by row."""
        return self._kv.groups.of(slots)

    def lendable(self, slot: int) -> int:
        """Blocks that lending all of `slot` (in no running job) would make takeable now.

        0 while copies of the slot are on their way. Host blocks are shared: of several slots
        together at most `KvCache.free_host_blocks` if all their columns have tokens.
        """
        return self._lending.lendable(self._kv, slot)

    def lend(self, slot: int, num_computed: int, blocks: int) -> int:
        """Lend columns of `slot` (in no running job), deepest first; blocks lent.

        Ends at a column with another reader, too, or where host blocks are short. num_computed: the
        sequence's tokens in the cache. A left one keeps the column that lies over lent blocks.
        """
        return self._lending.lend(self._kv, slot, num_computed, blocks)

    @property
    def lies_over_lent(self) -> bool:
        """True where left sequences of the model may lie over lent blocks: see `saves`."""
        return len(self._kv.shared) > 0

    def saves(
        self, slots: NDArray[np.int32], ends: NDArray[np.int32], job_id: int
    ) -> tuple[SlotCopies, ...]:
        """What job `job_id` must save before left slots[i] (distinct) holds ends[i] tokens."""
        return self._saving.saves(self._kv, slots, ends, job_id)

    def blocked(self) -> NDArray[np.bool_] | None:
        """Left slots that must not be in a new job now, bool [max_seqs]; None: nobody."""
        return self._restoring.blocked(self._kv)

    def untaken(self, slot: int) -> int:
        """Blocks that `slot` lent and no interactive sequence took."""
        return self._saving.untaken(self._kv, slot)

    def swap_out(self, slot: int, blocks: int, job_id: int) -> SlotCopies:
        """Job `job_id` saves what so many untaken blocks of `slot` hold, which are free at once.

        The caller gives that job all blocks that are free now, as no other may write there first.
        """
        return self._saving.swap_out(self._kv, slot, blocks, job_id)

    def restore_cost(self, slot: int) -> int:
        """Fresh blocks that a restore of `slot` would take now."""
        return int(self._kv.lent.costs[slot])

    def restore_shortage(self, slot: int, spare: int) -> Shortage | None:
        """What is missing to restore `slot` and take `spare` blocks more."""
        slots = np.array([slot], dtype=np.int32)
        return self._restoring.shortage(self._kv, slots, spare)[1]

    def can_restore(self, slot: int) -> bool:
        """False while running jobs save it, restore it or what it lies over, or a save failed."""
        return self._restoring.can_restore(self._kv, slot)

    def restore(
        self, slots: NDArray[np.int32], job_id: int
    ) -> tuple[TableDelta, SlotCopies] | Shortage:
        """Make `slots` (distinct, of one side) whole with a job, or none: new entries, and copies.

        Left ones take lent blocks, too: call `saves` of them for the job before its next `restore`.
        """
        blocks, shortage = self._restoring.shortage(self._kv, slots)
        if shortage is not None:
            return shortage
        self._cached.make_room(blocks)
        return self._restoring.restore(self._kv, slots, job_id)
