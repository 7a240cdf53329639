"""What a planned batch job may know of its unit's memory, and ask of it."""

from collections.abc import Mapping
from typing import NamedTuple

from muxcluster.core.hashing import extend_hashes
from muxcluster.core.pinning import PinnedPrefix, Unpin
from muxcluster.core.request import ServiceClass
from muxcluster.kvcache.cache import KvCache
from muxcluster.scheduling.state.live import chain_root, side_of
from muxcluster.scheduling.state.model import ModelState


class BatchSpace(NamedTuple):
    """num_blocks: what batch requests of a model might hold if nobody else were there: the pool,
    or the model's quota. other_blocks: of them, those that interactive requests and the batch
    requests of other models hold.
    """

    num_blocks: int
    other_blocks: int


class BatchMemory:
    """The memory that batch requests find. is_bound: the models' quotas bind them, too."""

    def __init__(self, kv: KvCache, models: Mapping[str, ModelState], *, is_bound: bool) -> None:
        self._kv = kv
        self._models = models
        self._is_bound = is_bound

    def space(self, name: str | None) -> BatchSpace:
        """For batch requests of that model, now; None: for those of all models together, whom
        quotas, which follow use, do not bind. Raises KeyError for an unknown one."""
        if name is None:
            others = sum(self._interactive_blocks(model) for model in self._models.values())
            return BatchSpace(self._kv.num_blocks, others)
        kv, model = self._kv, self._models[name]
        own = self._interactive_blocks(model)
        others = own + sum(
            other.kv.used + other.kv.batch_used
            for other in self._models.values()
            if other is not model
        )
        if not self._is_bound:
            return BatchSpace(kv.num_blocks, others)
        quota = min(kv.num_blocks, model.kv.quota)
        return BatchSpace(quota, max(own, others - (kv.num_blocks - quota)))

    def take(self, message: PinnedPrefix | Unpin) -> None:
        """Do what it says."""
        if isinstance(message, PinnedPrefix):
            self.pin(message)
        else:
            self.unpin(message.pin_id)

    def pin(self, prefix: PinnedPrefix) -> None:
        """Batch requests that begin so are to come: see `kvcache.pins` and `reserves.for_pins`.

        Nothing happens where the model is unknown or caches no prefixes.
        """
        model = self._models.get(prefix.model)
        if model is not None and model.spec.prefix_caching:
            side = side_of(ServiceClass.BATCH)
            root = chain_root(prefix.model, prefix.cache_salt, side)
            hashes = extend_hashes(root, prefix.tokens, model.block_tokens)
            self._kv.pins.add(prefix.pin_id, prefix.model, hashes, side)

    def unpin(self, pin_id: str) -> None:
        """Free the pin; an unknown one is ignored."""
        self._kv.pins.remove(pin_id)

    def _interactive_blocks(self, model: ModelState) -> int:
        """At most so many: a block that several of them read may count for each."""
        capacity = model.kv.capacity[~model.slots.is_batch]
        columns = int(capacity.sum()) // model.block_tokens
        return min(columns * model.blocks_per_column, model.kv.used)
