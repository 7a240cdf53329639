"""Blocks that a request may not take to be admitted, free or not."""

from collections.abc import Sequence

import numpy as np

from muxcluster.core.job import Side
from muxcluster.core.request import ServiceClass
from muxcluster.kvcache.cache import KvCache
from muxcluster.scheduling.state.model import ModelState


def for_growth(model: ModelState, *, only_interactive: bool) -> int:
    """One more column of each sequence that may still grow and keep newcomers out.

    Without it, admission and preemption would take turns at the same blocks.
    """
    table = model.slots
    may_grow = model.kv.capacity < table.most_computed
    if only_interactive:
        may_grow = may_grow > table.is_batch
    return int(np.count_nonzero(may_grow)) * model.blocks_per_column


def for_pins(kv: KvCache, models: Sequence[ModelState], side: Side) -> int:
    """Idle pinned blocks, at most half the pool, which batch requests are kept from.

    Not where an interactive request waits, maybe behind a batch one, nor where no batch sequence
    is left whose end could make room: pins then give way, as they do wherever a sequence grows.
    """
    blocks = min(kv.pins.idle_blocks, kv.num_blocks // 2)
    if side is Side.LEFT or not blocks or not any(model.slots.num_batch for model in models):
        return 0
    interactive = (model.waiting.by_class[ServiceClass.INTERACTIVE] for model in models)
    return 0 if any(queue.head is not None for queue in interactive) else blocks
