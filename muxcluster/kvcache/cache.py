"""The KV cache of one unit: every model's sequences in one pool, within quotas."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import SharedPrefixes, Side, TableDelta
from muxcluster.kvcache.check import check_cache
from muxcluster.kvcache.eviction import CachedColumns
from muxcluster.kvcache.lending.model import ModelLending
from muxcluster.kvcache.lending.state import LentState
from muxcluster.kvcache.model import KvModel, ModelKv
from muxcluster.kvcache.pool import OWNER_BIT, BlockLedger, BlockPool, Shortage


class ModelCache:
    """Sequences of one model in the unit's pool, addressed by row.

    A sequence is opened on a row, grows in whole columns, commits columns that are fully computed,
    and is closed. `lending` lends, saves and restores columns.
    """

    def __init__(
        self, kv: ModelKv, lent: LentState, cached: CachedColumns, *, saves_lazily: bool
    ) -> None:
        """lent, cached: of all models of the unit. saves_lazily: see `KvCache`."""
        self._kv = kv
        self._ledger = lent.ledger
        self._lent = lent
        self._cached = cached
        self.lending = ModelLending(lent, kv, cached, saves_lazily=saves_lazily)
        self.name = kv.model.name
        self.block_bytes = kv.block_bytes
        self.block_tokens = kv.block_tokens  # tokens of the model that fit into a block
        # Of each row, int32 [max_seqs], live and read-only:
        self.capacity = kv.capacity  # tokens that fit into its columns now
        self.num_committed = kv.num_committed  # tokens attached or committed
        self.num_lent = kv.num_lent  # lent columns, 0 for a whole sequence

    @property
    def used(self) -> int:
        """Distinct blocks that live (bidirectional: left) sequences hold."""
        return self._ledger.used(self.name)

    @property
    def batch_used(self) -> int:
        """Distinct blocks that right sequences alone hold; 0 if not bidirectional."""
        return self._ledger.batch_used(self.name)

    @property
    def table_bytes(self) -> int:
        """Bytes of the model's tables in this process."""
        return self._kv.table_bytes

    @property
    def num_cached(self) -> int:
        """Cached blocks that no sequence reads."""
        return self._ledger.cached(self.name)

    @property
    def quota(self) -> int:
        """Most blocks the model may use."""
        return self._ledger.quota(self.name)

    def headroom(self, side: Side = Side.LEFT) -> int:
        """Return the blocks growth on `side` may take now: min(quota - used, free + evictable).

        Bidirectional: lent ones too on the left side, and no quota on the right one.
        """
        is_batch = self._lent.is_batch(OWNER_BIT[side])
        return self._ledger.headroom(self.name, is_batch=is_batch)

    def finds(self, hashes: Sequence[bytes]) -> bool:
        """True where a cached prefix stands at the beginning of the chain `hashes`."""
        return self._kv.prefix.has_first(hashes)

    def open(self, row: int, hashes: Sequence[bytes], side: Side = Side.LEFT) -> int:
        """Begin a sequence on a closed row and attach the longest cached prefix.

        hashes: chain hashes of the prompt's full blocks (none to stay away from the cache).
        Returns the tokens attached, whole blocks: no more than the quota allows.
        """
        kv, owner = self._kv, OWNER_BIT[side]
        if not hashes:
            kv.sequences.open(row, owner, kv.nothing.columns)
            return 0
        columns = kv.prefix.match(hashes)
        if not self._lent.is_batch(owner):
            columns = self._cached.affordable(kv, columns)
        kv.sequences.open(row, owner, columns)
        self._cached.attach(kv, columns, owner)
        return len(columns) * kv.block_tokens

    def grow(self, rows: NDArray[np.int32], num_tokens: NDArray[np.int32]) -> TableDelta | Shortage:
        """Make room for num_tokens[i] tokens in rows[i] (open, distinct), all or nothing.

        Unread cached columns are evicted where blocks are short; then left sequences take lent
        blocks. `rows` are whole. Returns new table entries, or what is missing, unchanged.
        """
        kv = self._kv
        lack = kv.sequences.lack(rows, num_tokens)
        if lack is None:
            return kv.nothing
        blocks = lack.total * kv.columns.blocks_per_column
        batch = self._lent.num_batch(kv, lack)
        shortage = self._ledger.shortage(self.name, blocks, batch)
        if shortage is not None:
            return shortage
        self._cached.make_room(blocks)
        return self._lent.take(kv, lack, batch)

    def lack(self, rows: NDArray[np.int32], num_tokens: NDArray[np.int32]) -> int:
        """Return the blocks that `grow` would take for the same rows and lengths."""
        lack = self._kv.sequences.lack(rows, num_tokens)
        return 0 if lack is None else lack.total * self._kv.columns.blocks_per_column

    def commit(self, row: int, hashes: Sequence[bytes]) -> None:
        """Publish the next len(hashes) columns of the sequence, which are fully computed.

        They are immutable from then on. `hashes` continue the chain of those before.
        """
        self._kv.commit(row, hashes)

    def close(self, row: int) -> None:
        """End the sequence: unpublished columns are freed, published ones stay in the cache.

        It is in no running job; it may be lent or half saved.
        """
        kv = self._kv
        owner = int(kv.sequences.owners[row])
        taken = self._lent.close(kv, row)
        columns, num_counted = kv.sequences.close(row)
        self._ledger.give(self.name, num_counted * kv.columns.blocks_per_column)
        if len(columns) == 0:
            return
        self._cached.detach(kv, columns, owner)
        if len(taken):
            self._lent.take_back(taken)

    def tables(self, rows: NDArray[np.int32]) -> TableDelta:
        """Return the whole block tables of `rows`: after a prefix was attached, or a restart."""
        return self._kv.delta(rows)

    def shared_prefixes(self, rows: NDArray[np.int32]) -> SharedPrefixes | None:
        """Return the computed columns that `rows` (distinct, open) have in common."""
        return self._kv.groups.of(rows)


class KvCache:
    """Bookkeeping of one unit's pool of `num_blocks` blocks; no tensor, no clock.

    `of` returns one model's part of it. Quotas count blocks; a model without one in `quotas` may
    use all blocks.
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
        """has_block_ids: False keeps counts and no ids, for a simulator: every answer is the same,
            but a TableDelta is empty.
        num_host_blocks: blocks of host memory, which keep tokens that left sequences overwrite.
        is_bidirectional: sequences may lend blocks and quotas bind interactive ones only; needs
            block ids.
        saves_lazily: False saves a block wholly when it is first written to.
        """
        assert has_block_ids or not is_bidirectional, "only blocks with ids can be lent"
        self.num_blocks = num_blocks
        pool = BlockPool(num_blocks if has_block_ids else 0)
        for_lending = num_host_blocks if is_bidirectional else None
        models_kv = {
            model.name: ModelKv(model, num_blocks, block_bytes, has_block_ids, for_lending)
            for model in models
        }
        self._ledger = BlockLedger(num_blocks, dict.fromkeys(models_kv, num_blocks))
        self._ledger.set_quotas(quotas)
        self._cached = CachedColumns(
            pool, self._ledger, models_kv, is_bidirectional=is_bidirectional
        )
        self.pins = self._cached.pins
        self._lent = LentState(
            pool, self._ledger, models_kv, num_host_blocks, is_on=is_bidirectional
        )
        self._models = {
            name: ModelCache(kv, self._lent, self._cached, saves_lazily=saves_lazily)
            for name, kv in models_kv.items()
        }

    def of(self, model: str) -> ModelCache:
        """Return the part of the cache that serves `model`; KeyError: unknown model."""
        return self._models[model]

    def set_quotas(self, quotas: Mapping[str, int]) -> None:
        """Change quotas; lowering one evicts nothing. ValueError: unknown model, negative quota."""
        self._ledger.set_quotas(quotas)

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return self._ledger.free

    @property
    def evictable(self) -> int:
        """Cached blocks of all models that no sequence reads."""
        return self._ledger.evictable

    @property
    def lent(self) -> int:
        """Lent blocks that no left sequence took."""
        return self._ledger.lent

    @property
    def free_host_blocks(self) -> int:
        """Host blocks left: each lent block with tokens takes one."""
        return self._lent.host_blocks.free

    def drop_cache(self) -> None:
        """Evict all cached columns that no sequence reads."""
        self._cached.evict(self.evictable)

    def end_copies(self, job_id: int, succeeded: bool) -> list[tuple[str, int]]:
        """End the copies of job `job_id`, before its rows are updated.

        Returns (model, row) of each sequence that must be recomputed because its copies failed.
        """
        return self._lent.end_job(job_id, succeeded=succeeded)

    def reset_copies(self) -> None:
        """End the copies of all running jobs, which are lost; the caller closes all sequences."""
        self._lent.reset()

    def check(self) -> None:
        """Raise AssertionError naming the first broken invariant."""
        check_cache(self._lent, self._cached.order)
        self.pins.check()
