"""Who gives up its memory where blocks are short and nobody lends: its tokens are recomputed."""

from collections.abc import Sequence

import numpy as np

from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.slots import Slots


def least_senior(
    models: Sequence[ModelState], *, is_left: bool = False, by_quota: bool = False
) -> tuple[ModelState, int]:
    """The least senior sequence of `models` in no running job (there is one: who asks).

    is_left: blocks are for interactive sequences where batch ones lend. Then it is one whose end
    yields some: no batch sequence that has lent all it had, and none at all where the quota
    (by_quota), which binds interactive ones only, is short.
    """
    worst: tuple[int, ModelState, int] | None = None
    for model in models:
        idle = _useful(model, by_quota=by_quota) if is_left else model.slots.idle()
        if len(idle) == 0:
            continue
        ranks = model.slots.seniority[idle]
        last = int(np.argmax(ranks))
        if worst is None or int(ranks[last]) > worst[0]:
            worst = int(ranks[last]), model, int(idle[last])
    assert worst is not None, "a sequence in a running job asks for blocks"
    return worst[1], worst[2]


def _useful(model: ModelState, *, by_quota: bool) -> Slots:
    table = model.slots
    idle = table.idle()
    if by_quota:
        return idle[~table.is_batch[idle]]
    lent_tokens = model.kv.num_lent[idle] * np.int32(model.block_tokens)
    return idle[~table.is_batch[idle] | (model.kv.capacity[idle] > lent_tokens)]
