"""The KV cache of one unit: every model's sequences in one pool, within quotas."""

from collections.abc import Mapping, Sequence

from muxcluster.kvcache.cached import CachedColumns
from muxcluster.kvcache.check import check_cache
from muxcluster.kvcache.eviction import EvictionOrder
from muxcluster.kvcache.ledger import BlockLedger
from muxcluster.kvcache.lending.lend import Lending
from muxcluster.kvcache.lending.restore import Restoring
from muxcluster.kvcache.lending.save import Saving
from muxcluster.kvcache.lending.state import Sharing
from muxcluster.kvcache.model import KvModel
from muxcluster.kvcache.model_cache import ModelCache, Parts
from muxcluster.kvcache.model_kv import ModelKv
from muxcluster.kvcache.pool import BlockPool


class KvCache:
    """Bookkeeping of one unit's pool of `num_blocks` blocks; no tensor, no clock.

    What concerns one model is asked of its part of the cache: see `of` and `ModelCache`. Quotas
    count blocks; a model without one in `quotas` may use all blocks.
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
        num_host_blocks: blocks of host memory, which keep tokens that left sequences overwrite.
        is_bidirectional: sequences may lend blocks and quotas bind interactive ones only; needs
            block ids. saves_lazily: False saves a block wholly when it is first written to.
        """
        assert has_block_ids or not is_bidirectional, "only blocks with ids can be lent"
        self.num_blocks = num_blocks
        pool = BlockPool(num_blocks if has_block_ids else 0)
        frames = num_host_blocks if is_bidirectional else None
        models_kv = {
            model.name: ModelKv(model, num_blocks, block_bytes, has_block_ids, frames)
            for model in models
        }
        self._ledger = BlockLedger(num_blocks, dict.fromkeys(models_kv, num_blocks))
        self._ledger.set_quotas(quotas)
        self._order = EvictionOrder()
        self._cached = CachedColumns(pool, self._ledger, models_kv, self._order)
        self.pins = self._cached.pins
        self._sharing = Sharing(
            pool, self._ledger, models_kv, num_host_blocks, is_on=is_bidirectional
        )
        self._restoring = Restoring(self._sharing)
        parts = Parts(
            sharing=self._sharing,
            cached=self._cached,
            order=self._order,
            lending=Lending(self._sharing),
            saving=Saving(self._sharing, is_lazy=saves_lazily),
            restoring=self._restoring,
        )
        self._models = {name: ModelCache(kv, parts) for name, kv in models_kv.items()}

    def of(self, model: str) -> ModelCache:
        """The part of the cache that serves `model`. Raises KeyError for an unknown model."""
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
        """Cached blocks of all models that nobody references."""
        return self._ledger.evictable

    @property
    def lent(self) -> int:
        """Lent blocks that no left sequence took."""
        return self._ledger.lent

    @property
    def free_host_blocks(self) -> int:
        """Host blocks left: each lent block with tokens takes one."""
        return self._sharing.frames.free

    def drop_cache(self) -> None:
        """Forget all cached columns that nobody reads."""
        self._cached.evict(self.evictable)

    def end_copies(self, job_id: int, succeeded: bool) -> list[tuple[str, int]]:
        """Job `job_id` has ended; call it before the rows of the job are told so.

        Returns (model, slot) of each sequence that must be recomputed, because its copies failed.
        """
        return self._restoring.end(job_id, succeeded=succeeded)

    def reset_copies(self) -> None:
        """Every running job is lost; the caller closes all sequences then."""
        self._restoring.reset()

    def check(self) -> None:
        """Raise AssertionError naming the first broken invariant."""
        check_cache(self._sharing, self._order)
        self.pins.check()
