"""What a planned batch job may know of its unit's memory, and ask of it."""

from collections.abc import Mapping
from typing import NamedTuple

from muxcluster.core.hashing import extend_hashes
from muxcluster.core.request import PinnedPrefix, ServiceClass
from muxcluster.kvcache.cache import KvCache
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.requests import chain_root, side_of


class BatchSpace(NamedTuple):
    """Blocks for batch requests of a model."""

    num_blocks: int  # what they might hold if they were alone: the pool, or the model's quota
    other_blocks: int  # of them, held by interactive requests and batch requests of other models


class BatchMemory:
    """The memory that batch requests find, and the prefixes they pin."""

    def __init__(self, kv: KvCache, models: Mapping[str, ModelState], *, is_bound: bool) -> None:
        """is_bound: the models' quotas bind batch requests, too."""
        self._kv = kv
        self._models = models
        self._is_bound = is_bound

    def space(self, name: str | None) -> BatchSpace:
        """Return the space of batch requests of a model now. Raises KeyError for an unknown one.

        None: of all models together, without quotas, as these follow use.
        """
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

    def pin(self, prefix: PinnedPrefix) -> None:
        """Keep a prefix that batch requests to come begin with: see `kvcache.eviction.Pins`.

        Nothing happens where the model is unknown or caches no prefixes.
        """
        model = self._models.get(prefix.model)
        if model is not None and model.spec.prefix_caching:
            root = chain_root(model.spec, prefix, side_of(ServiceClass.BATCH))
            hashes = extend_hashes(root, prefix.tokens, model.block_tokens)
            self._kv.pins.add(prefix.pin_id, prefix.model, hashes)

    def unpin(self, pin_id: str) -> None:
        """Remove the pin; an unknown one is ignored."""
        self._kv.pins.remove(pin_id)

    def _interactive_blocks(self, model: ModelState) -> int:
        # An upper bound: a block that several sequences read counts for each.
        capacity = model.kv.capacity[~model.running.is_batch]
        columns = int(capacity.sum()) // model.block_tokens
        columns += int((capacity > 0).sum()) * model.spec.state_columns
        return min(columns * model.blocks_per_column, model.kv.used)
