"""The KV cache of one unit: every model's sequences in one pool, within quotas (DESIGN.md §3)."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import SharedPrefixes, Side, SlotCopies, TableDelta
from muxcluster.kvcache.audit import check_cache
from muxcluster.kvcache.cached import CachedColumns
from muxcluster.kvcache.eviction import EvictionOrder
from muxcluster.kvcache.lending import Lending
from muxcluster.kvcache.model import KvModel, Shortage
from muxcluster.kvcache.modelkv import ModelKv
from muxcluster.kvcache.pool import OWNER_BIT, BlockPool
from muxcluster.kvcache.quota import BlockLedger
from muxcluster.kvcache.restoring import Restoring
from muxcluster.kvcache.saving import Saving
from muxcluster.kvcache.sharing import Sharing


class KvCache:
    """Bookkeeping of ONE unit's pool of `num_blocks` blocks; no tensor, no clock.

    A sequence (model, slot) is opened, grows in whole columns, commits columns that are fully
    computed, and is closed. Quotas count blocks; a model without one in `quotas` may use all.
    """

    def __init__(  # noqa: PLR0913 - each keyword is an independent choice with a plain default
        self,
        num_blocks: int,
        block_bytes: int,
        models: Sequence[KvModel],
        quotas: Mapping[str, int],
        *,
        has_block_ids: bool = True,
        num_host_blocks: int = 0,
        is_bidirectional: bool = False,
        saves_lazily: bool = True,
    ) -> None:
        """has_block_ids: False keeps counts (decisions) and no ids (addresses), for a simulator.
            Every answer is the same, but a TableDelta is empty.
        num_host_blocks: frames in host memory for what left sequences overwrite.
        is_bidirectional: sequences may lend blocks and quotas bind interactive ones only; needs
            block ids. saves_lazily: False saves a block wholly when it is first written to.
        """
        assert has_block_ids or not is_bidirectional, "only blocks with ids can be shared"
        self.num_blocks = num_blocks
        self._pool = BlockPool(num_blocks if has_block_ids else 0)
        frames = num_host_blocks if is_bidirectional else None
        parts = (ModelKv(m, num_blocks, block_bytes, has_block_ids, frames) for m in models)
        self._models = {part.model.name: part for part in parts}
        self._ledger = BlockLedger(num_blocks, dict.fromkeys(self._models, num_blocks))
        self._ledger.set_quotas(quotas)
        self._order = EvictionOrder()
        self._cached = CachedColumns(self._pool, self._ledger, self._models, self._order)
        self.pins = self._cached.pins
        self._sharing = Sharing(
            self._pool, self._ledger, self._models, num_host_blocks, is_on=is_bidirectional
        )
        self._lending = Lending(self._sharing)
        self._saving = Saving(self._sharing, is_lazy=saves_lazily)
        self._restoring = Restoring(self._sharing)

    def block_tokens(self, model: str) -> int:
        """Tokens in one block of the model."""
        return self._models[model].block_tokens

    def finds(self, model: str, hashes: Sequence[bytes], side: Side) -> bool:
        """True where a cached prefix stands at the beginning of the chain `hashes`."""
        return self._models[model].prefix.has_first(hashes, OWNER_BIT[side])

    def open(self, model: str, slot: int, hashes: Sequence[bytes], side: Side = Side.LEFT) -> int:
        """Begin a sequence on a closed slot and attach the longest cached prefix.

        hashes: chain hashes of the prompt's full blocks (none to stay away from the cache).
        Returns the tokens attached, whole blocks: no more than the quota allows.
        """
        kv, owner = self._models[model], OWNER_BIT[side]
        if not hashes:
            kv.sequences.open(slot, owner, kv.nothing.columns)
            return 0
        columns, is_batch = kv.prefix.match(hashes, owner), self._sharing.is_batch(owner)
        if not is_batch:
            columns = self._affordable(kv, columns)
        revived = columns[kv.columns.refs[columns] == 0]
        kv.sequences.open(slot, owner, columns)
        kv.columns.attach(columns)
        self._order.remove(((model, column) for column in revived.tolist()), owner)
        blocks = len(revived) * kv.columns.blocks_per_column
        self._ledger.revive(model, blocks, is_batch=is_batch)
        return len(columns) * kv.block_tokens

    def _affordable(self, kv: ModelKv, columns: NDArray[np.int32]) -> NDArray[np.int32]:
        unread = kv.columns.refs[columns] == 0
        cost = np.cumsum(unread) * kv.columns.blocks_per_column
        return columns[: cost.searchsorted(self._ledger.quota_left(kv.model.name), side="right")]

    def grow(
        self, model: str, slots: NDArray[np.int32], num_tokens: NDArray[np.int32]
    ) -> TableDelta | Shortage:
        """Make room for num_tokens[i] tokens in slots[i] (open, distinct), all or nothing.

        Cached columns nobody reads are evicted where blocks are short; left sequences take lent
        ones then. `slots` are whole. Returns new table entries, or what is missing, unchanged.
        """
        kv = self._models[model]
        lack = kv.sequences.lack(slots, num_tokens)
        if lack is None:
            return kv.nothing
        blocks = lack.total * kv.columns.blocks_per_column
        batch = self._lending.batch_part(kv, lack)
        shortage = self._ledger.shortage(model, blocks, batch)
        if shortage is not None:
            return shortage
        self._cached.make_room(blocks)
        return self._lending.extend(kv, lack, batch)

    def lack(self, model: str, slots: NDArray[np.int32], num_tokens: NDArray[np.int32]) -> int:
        """Blocks that `grow` would take for the same slots and lengths."""
        kv = self._models[model]
        lack = kv.sequences.lack(slots, num_tokens)
        return 0 if lack is None else lack.total * kv.columns.blocks_per_column

    def commit(self, model: str, slot: int, hashes: Sequence[bytes]) -> None:
        """The next len(hashes) columns of the sequence are fully computed: publish them.

        They are immutable then. `hashes` continue the chain of those before.
        """
        self._models[model].commit(slot, hashes)

    def close(self, model: str, slot: int) -> None:
        """End the sequence: unpublished columns are freed, published ones stay while unread.

        It is in no running job; lent or half saved it may be.
        """
        kv = self._models[model]
        owner = int(kv.sequences.owners[slot])
        is_batch, shared = self._sharing.is_batch(owner), self._lending.close(kv, slot)
        columns, num_counted = kv.sequences.close(slot)
        self._ledger.give(model, num_counted * kv.columns.blocks_per_column)
        if len(columns) == 0:
            return
        unread = columns[kv.columns.detach(columns)]
        # Deepest first: see EvictionOrder.
        self._cached.retire(kv, unread[::-1], owner, is_batch=is_batch)
        if len(shared):
            self._sharing.take_back(shared)

    def tables(self, model: str, slots: NDArray[np.int32]) -> TableDelta:
        """The whole block tables of `slots`: after a prefix was attached, or after a restart."""
        return self._models[model].delta(slots)

    def shared_prefixes(self, model: str, slots: NDArray[np.int32]) -> SharedPrefixes | None:
        """The computed columns that `slots` (distinct, open) have in common, by row."""
        return self._models[model].groups.of(slots)

    def capacity(self, model: str) -> NDArray[np.int32]:
        """Tokens that fit into each slot's columns now, int32 [max_seqs]; read-only live view."""
        return self._models[model].capacity

    def num_committed(self, model: str) -> NDArray[np.int32]:
        """Tokens attached or committed in each slot, int32 [max_seqs]; read-only live view."""
        return self._models[model].num_committed

    def headroom(self, model: str, side: Side = Side.LEFT) -> int:
        """Blocks that growth on `side` may still take now: min(quota - used, free + evictable).

        Bidirectional: lent ones too on the left side, and no quota on the right one.
        """
        return self._ledger.headroom(model, is_batch=self._sharing.is_batch(OWNER_BIT[side]))

    def used(self, model: str) -> int:
        """Distinct blocks referenced by the model's live (bidirectional: left) sequences."""
        return self._ledger.used(model)

    def batch_used(self, model: str) -> int:
        """Distinct blocks that the model's right sequences alone hold; 0 if not bidirectional."""
        return self._ledger.batch_used(model)

    def cached(self, model: str) -> int:
        """The model's cached blocks that nobody references."""
        return self._ledger.cached(model)

    def quota(self, model: str) -> int:
        """Most blocks the model may use."""
        return self._ledger.quota(model)

    def set_quotas(self, quotas: Mapping[str, int]) -> None:
        """Change quotas; lowering one evicts nothing. ValueError: unknown model, negative quota."""
        self._ledger.set_quotas(quotas)

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return self._ledger.free

    @property
    def evictable(self) -> int:
        """Cached blocks of all models that nobody references."""
        return self._ledger.evictable

    @property
    def lent(self) -> int:
        """Lent blocks that no left sequence took."""
        return self._ledger.lent

    def drop_cache(self) -> None:
        """Forget all cached columns that nobody reads."""
        self._cached.evict(self.evictable)

    def lendable(self, model: str, slot: int) -> int:
        """Blocks that lending all of `slot` (in no running job) would make takeable now.

        0 while copies of the slot are on their way. Frames are shared: of several slots together
        at most `free_frames` if all their columns have tokens.
        """
        return self._lending.lendable(self._models[model], slot)

    def lend(self, model: str, slot: int, num_computed: int, blocks: int) -> int:
        """Lend columns of `slot` (in no running job), deepest first; blocks lent.

        Ends at a column with another reader, too, or where frames are short. num_computed: the
        sequence's tokens in the cache. A left one keeps the column that lies over lent blocks.
        """
        return self._lending.lend(self._models[model], slot, num_computed, blocks)

    def num_lent(self, model: str) -> NDArray[np.int32]:
        """Lent columns of each slot, int32 [max_seqs], 0: whole; read-only live view."""
        return self._models[model].num_lent

    def restore_cost(self, model: str, slot: int) -> int:
        """Fresh blocks that a restore of `slot` would take now."""
        return int(self._models[model].lent.costs[slot])

    def restore_shortage(self, model: str, slot: int, spare: int) -> Shortage | None:
        """What is missing to restore `slot` and take `spare` blocks more."""
        slots = np.array([slot], dtype=np.int32)
        return self._restoring.shortage(self._models[model], slots, spare)[1]

    def untaken(self, model: str, slot: int) -> int:
        """Blocks that `slot` lent and no interactive sequence took."""
        return self._saving.untaken(self._models[model], slot)

    def swap_out(self, model: str, slot: int, blocks: int, job_id: int) -> SlotCopies:
        """Job `job_id` saves what so many untaken blocks of `slot` hold, which are free at once.

        The caller gives that job all blocks that are free now, as no other may write there first.
        """
        return self._saving.swap_out(self._models[model], slot, blocks, job_id)

    def can_restore(self, model: str, slot: int) -> bool:
        """False while running jobs save it, restore it or what it lies over, or a save failed."""
        return self._restoring.can_restore(self._models[model], slot)

    def restore(
        self, model: str, slots: NDArray[np.int32], job_id: int
    ) -> tuple[TableDelta, SlotCopies] | Shortage:
        """Make `slots` (distinct, of one side) whole with a job, or none: new entries, and copies.

        Left ones take lent blocks, too: call the job's `saves` of them before its next `restore`.
        """
        kv = self._models[model]
        blocks, shortage = self._restoring.shortage(kv, slots)
        if shortage is not None:
            return shortage
        self._cached.make_room(blocks)
        return self._restoring.restore(kv, slots, job_id)

    def shares(self, model: str) -> bool:
        """True where left sequences of the model may lie over lent blocks: see `saves`."""
        return len(self._models[model].shared) > 0

    def saves(
        self, model: str, slots: NDArray[np.int32], ends: NDArray[np.int32], job_id: int
    ) -> tuple[SlotCopies, ...]:
        """What job `job_id` must save before left slots[i] (distinct) holds ends[i] tokens."""
        return self._saving.saves(self._models[model], slots, ends, job_id)

    def blocked(self, model: str) -> NDArray[np.bool_] | None:
        """Left slots that must not be in a new job now, bool [max_seqs]; None: nobody."""
        return self._restoring.blocked(self._models[model])

    def end_copies(self, job_id: int, succeeded: bool) -> list[tuple[str, int]]:
        """Job `job_id` has ended: (model, slot) to recompute. Before its rows are told so."""
        return self._restoring.end(job_id, succeeded=succeeded)

    def reset_copies(self) -> None:
        """Every running job is lost; the caller closes all sequences then."""
        self._restoring.reset()

    @property
    def free_frames(self) -> int:
        """Host frames left: each lent block with tokens takes one."""
        return self._sharing.frames.free

    def check(self) -> None:
        """Raise AssertionError naming the first broken invariant."""
        check_cache(self._sharing, self._order)
        self.pins.check()
