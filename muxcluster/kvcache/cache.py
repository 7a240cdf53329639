"""The KV cache of one unit: every model's sequences in one pool, within quotas."""

from collections.abc import Mapping, Sequence

from muxcluster.kvcache.check import check_cache
from muxcluster.kvcache.eviction import CachedColumns
from muxcluster.kvcache.ledger import BlockLedger
from muxcluster.kvcache.lending.state import LentState
from muxcluster.kvcache.model import KvModel
from muxcluster.kvcache.model_cache import ModelCache
from muxcluster.kvcache.model_kv import ModelKv
from muxcluster.kvcache.pool import BlockPool


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
        self._cached = CachedColumns(pool, self._ledger, models_kv)
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
