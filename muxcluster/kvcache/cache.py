"""The KV cache of one unit: every model's sequences in one pool, within quotas."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import SharedPrefixes, Side, TableDelta
from muxcluster.kvcache.check import check_cache
from muxcluster.kvcache.eviction import CachedColumns
from muxcluster.kvcache.lending.model import ModelLending
from muxcluster.kvcache.lending.state import LentState
from muxcluster.kvcache.model import KvModel, ModelKv, joined_tables
from muxcluster.kvcache.pool import OWNER_BIT, BlockLedger, BlockPool, Shortage
from muxcluster.kvcache.tables import Lack

_Found = tuple[int, NDArray[np.int32]]  # place of the first column in the sequence, and the columns


class ModelCache:
    """Sequences of one model in the unit's pool, addressed by row.

    A sequence is opened on a row, grows in whole columns, commits columns that are fully computed,
    gives back what its windows have left behind, and is closed. `lending` lends, saves and restores
    columns.
    """

    def __init__(
        self,
        kinds: Sequence[ModelKv],
        lent: LentState,
        cached: CachedColumns,
        *,
        saves_lazily: bool,
    ) -> None:
        """kinds: of its layers, those that see all tokens first. lent, cached: of all models of the
        unit. saves_lazily: see `KvCache`."""
        kv = kinds[0]
        self._kinds = tuple(kinds)
        no_rows = np.empty(0, dtype=np.int32)
        self._nothing = kv.nothing if len(kinds) == 1 else joined_tables(kinds, no_rows, no_rows)
        self._kv = kv
        self._ledger = lent.ledger
        self._lent = lent
        self._cached = cached
        self.lending = ModelLending(lent, kinds, cached, saves_lazily=saves_lazily)
        self.name = kv.model.name
        self.block_bytes = kv.block_bytes
        self.block_tokens = kv.block_tokens  # tokens of the model that fit into a block
        self.has_windows = bool(kinds[-1].kind.window)  # some layers give blocks back
        # All layers do: a prompt need not have all its blocks at once, see `slide`.
        self.slides = self.has_windows and len(kinds) == 1
        # Of each row, int32 [max_seqs], live and read-only. The kinds of layers grow together.
        self.capacity = kv.capacity  # tokens for which it took columns, from the first on
        self.num_committed = kv.num_committed  # tokens attached or committed

    @property
    def num_lent(self) -> NDArray[np.int32]:
        """Lent columns of each row, 0 for a whole sequence, int32 [max_seqs]; read-only."""
        first, *others = self._kinds
        if not others:
            return first.num_lent
        most: NDArray[np.int32] = np.maximum(first.num_lent, others[0].num_lent)
        return most

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
        return sum(kv.table_bytes for kv in self._kinds)

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
        if not self.has_windows:
            return self._kv.prefix.has_first(hashes)
        return self._end(self._find(hashes)) > 0

    def _find(self, hashes: Sequence[bytes]) -> list[_Found]:
        """Return the cached columns of each kind for the longest prefix of `hashes` that all have.

        A layer with a window needs those alone that the token after the prefix sees.
        """
        found = [self._kv.find(hashes)]
        for kv in self._kinds[1:]:
            found.append(kv.find(hashes[: self._end(found)]))
            end = self._end(found)
            found[0] = 0, found[0][1][:end]
        return found

    def _end(self, found: Sequence[_Found]) -> int:
        """Return the columns of the prefix that was found."""
        begin, columns = found[-1]
        return begin + len(columns)

    def _affordable(self, found: list[_Found]) -> list[_Found]:
        """Return what of `found` the quota lets a sequence read: of windows, all or nothing."""
        # A shorter prefix would need other columns, and more blocks beside them.
        if not self.has_windows:
            return [(0, self._cached.affordable(self._kv, found[0][1]))]
        costs = map(self._cached.cost, self._kinds, [columns for _, columns in found])
        if sum(costs) <= self._ledger.quota_left(self.name):
            return found
        return [(0, columns[:0]) for _, columns in found]

    def open(self, row: int, hashes: Sequence[bytes], side: Side = Side.LEFT) -> int:
        """Begin a sequence on a closed row and attach the longest cached prefix.

        hashes: chain hashes of the prompt's full blocks (none to stay away from the cache).
        Returns the tokens attached, whole blocks: no more than the quota allows.
        """
        owner = OWNER_BIT[side]
        if not hashes:
            for kv in self._kinds:
                kv.sequences.open(row, owner, kv.nothing.columns)
            return 0
        found = self._find(hashes)
        if not self._lent.is_batch(owner):
            found = self._affordable(found)
        for kv, (begin, columns) in zip(self._kinds, found, strict=True):
            kv.sequences.open(row, owner, columns, begin)
            self._cached.attach(kv, columns, owner)
        return self._end(found) * self.block_tokens

    def grow(self, rows: NDArray[np.int32], num_tokens: NDArray[np.int32]) -> TableDelta | Shortage:
        """Make room for num_tokens[i] tokens in rows[i] (open, distinct), all or nothing.

        Unread cached columns are evicted where blocks are short; then left sequences take lent
        blocks. `rows` are whole. Returns new table entries, or what is missing, unchanged.
        """
        kv = self._kv
        lack = kv.sequences.lack(rows, num_tokens)
        if lack is None:
            return self._nothing
        if len(self._kinds) > 1:
            return self._grow_kinds(lack)
        blocks = lack.total * kv.columns.blocks_per_column
        batch = self._lent.num_batch(kv, lack)
        shortage = self._ledger.shortage(self.name, blocks, batch)
        if shortage is not None:
            return shortage
        self._cached.make_room(blocks)
        return self._lent.take(kv, lack, batch)

    def _grow_kinds(self, lack: Lack) -> TableDelta | Shortage:
        """As `grow`, where several kinds of layers grow by the same columns."""
        sizes = [kv.columns.blocks_per_column for kv in self._kinds]
        batches = [self._lent.num_batch(kv, lack) for kv in self._kinds]
        shortage = self._ledger.shortage(self.name, lack.total * sum(sizes), sum(batches))
        if shortage is not None:
            return shortage
        self._cached.make_room(lack.total * sum(sizes))
        grown: list[TableDelta] = []
        for i, (kv, batch) in enumerate(zip(self._kinds, batches, strict=True)):
            # Right sequences have free blocks alone: those of the other kinds are left to them.
            grown.append(self._lent.take(kv, lack, batch, num_kept=sum(batches[i + 1 :])))
        return joined_tables(self._kinds, grown[0].rows, grown[0].columns)

    def lack(self, rows: NDArray[np.int32], num_tokens: NDArray[np.int32]) -> int:
        """Return the blocks that `grow` would take for the same rows and lengths."""
        lack = self._kv.sequences.lack(rows, num_tokens)
        return 0 if lack is None else lack.total * self._kv.model.shape.blocks_per_column

    def commit(self, row: int, hashes: Sequence[bytes], *, is_private: bool = False) -> None:
        """Publish the next len(hashes) columns of the sequence, which are fully computed.

        They are immutable from then on. `hashes` continue the chain of those before. is_private:
        others find them only when the sequence has given them back, or when `slide` has come to
        its end.
        """
        if self._lent.is_on:
            hashes = hashes[: min(kv.num_committable(row) for kv in self._kinds)]
        for kv in self._kinds:
            kv.commit(row, hashes, is_private=is_private)

    def give_back(self, rows: NDArray[np.int32], num_tokens: NDArray[np.int32]) -> None:
        """Take from rows[i] (open, whole, distinct) what no token after num_tokens[i] sees.

        Those tokens are computed, and no job runs that computes any of them. Published columns stay
        in the cache, others are freed.
        """
        if not self.has_windows:
            return
        kv = self._kinds[-1]
        begins = kv.kind.first_columns(num_tokens, kv.block_tokens)
        due = (begins > kv.sequences.begins[rows]).nonzero()[0]
        for row, begin in zip(rows[due].tolist(), begins[due].tolist(), strict=True):
            self._give_back(kv, row, begin)

    def _give_back(self, kv: ModelKv, row: int, begin: int) -> int:
        """Take the columns before `begin`; return how many of them no sequence reads any more."""
        columns, num_counted = kv.sequences.give_back(row, begin)
        count = num_counted + int(np.count_nonzero(kv.columns.refs[columns] == 1))
        self._ledger.give(self.name, num_counted * kv.columns.blocks_per_column)
        if len(columns):
            self._cached.detach(kv, columns, int(kv.sequences.owners[row]))
        return count

    def slide(self, row: int, num_computed: int, num_tokens: int) -> None:
        """As `give_back`, and take as many columns anew as came free, to those of num_tokens.

        For a sequence that began with a part of the columns of its prompt, where all layers have
        windows (`slides`). The columns that it computed must be private: so all that it leaves
        behind come free, and what it holds neither grows nor shrinks.
        """
        kv, table = self._kv, self._kv.sequences
        begin = kv.kind.first_column(num_computed, kv.block_tokens)
        if begin > table.begins[row]:
            count = self._give_back(kv, row, begin)
            wanted = min(num_tokens, (int(table.num_columns[row]) + count) * kv.block_tokens)
            grown = self.grow(np.array([row], np.int32), np.array([wanted], np.int32))
            assert not isinstance(grown, Shortage), "blocks that came free are not there"
        if table.capacity[row] >= num_tokens:  # it asks for no more: others may read what it has
            held = table.columns[row, table.begins[row] : table.num_named[row]]
            kv.columns.is_private[held] = False

    def tokens_before_return(
        self, rows: NDArray[np.int32], num_tokens: NDArray[np.int32]
    ) -> int | None:
        """Return how many tokens each of `rows` (at least one) may compute, with num_tokens[i]
        computed, before one of them gives blocks back; None: as many as it likes."""
        if not self.has_windows:
            return None
        kv = self._kinds[-1]
        # The next column goes when the first token that is still seen lies behind it.
        firsts = (kv.sequences.begins[rows] + np.int32(1)) * np.int32(kv.block_tokens)
        return int((firsts - num_tokens).min()) + kv.kind.window - 2

    def holds(self, rows: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return which of `rows` hold columns that they did not lend, bool [n]."""
        found = np.zeros(len(rows), dtype=np.bool_)
        for kv in self._kinds:
            table = kv.sequences
            found |= table.num_columns[rows] > table.begins[rows] + kv.lent.counts[rows]
        return found

    def mean_column(self, num_tokens: float) -> float:
        """Return the blocks that a running sequence of so many tokens holds, per column."""
        tokens = max(1.0, num_tokens)
        if not self.has_windows:
            of_states = self._kv.model.state_columns * self.block_tokens / tokens
            return self._kv.columns.blocks_per_column * (1.0 + of_states)
        return sum(
            kv.columns.blocks_per_column * min(1.0, (kv.kind.window or tokens) / tokens)
            for kv in self._kinds
        )

    def close(self, row: int) -> None:
        """End the sequence: unpublished columns are freed, published ones stay in the cache.

        It is in no running job; it may be lent or half saved.
        """
        for kv in self._kinds:
            self._close(kv, row)

    def _close(self, kv: ModelKv, row: int) -> None:
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
        """Return the whole block tables of `rows`: after a prefix was attached, or a restart.

        Where blocks were given back the entry is missing, or 0 where other layers keep theirs.
        """
        whole = self._kv.delta(rows)
        if len(self._kinds) == 1:
            return whole
        return joined_tables(self._kinds, whole.rows, whole.columns)

    def shared_prefixes(self, rows: NDArray[np.int32]) -> SharedPrefixes | None:
        """Return the computed columns that `rows` (distinct, open) have in common.

        Of layers that see all tokens; those with a window read no shared prefixes.
        """
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
            model.name: tuple(
                ModelKv(model, kind, num_blocks, block_bytes, has_block_ids, for_lending)
                for kind in model.kinds()
            )
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
            name: ModelCache(kinds, self._lent, self._cached, saves_lazily=saves_lazily)
            for name, kinds in models_kv.items()
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
