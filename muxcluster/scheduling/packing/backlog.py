"""What a glance at a model says of its work, before anything is reckoned or looked up."""

from muxcluster.core.request import ServiceClass
from muxcluster.scheduling.state.model import ModelState

_SPARE_SLOTS = 8
"""One slot of so many, rounded up, stays free of batch sequences, for interactive ones that come;
where there is but one, it does not.
"""


def lacks_prompts(model: ModelState) -> bool:
    """True where nothing could be in a prefill job; where it is False there may still be nothing.

    A unit of many models asks most of them for a prefill at every step, to no effect.
    """
    table, waiting = model.slots, model.waiting.by_class
    if table.num_prefilling:
        return False
    if waiting[ServiceClass.INTERACTIVE].head is not None:
        return False
    head = waiting[ServiceClass.BATCH].head
    return head is None or (not head.prefills_alone and not lets_batch_in(model))


def lacks_batch_prompts(model: ModelState) -> bool:
    """`lacks_prompts`, of the batch class alone."""
    table = model.slots
    prefilling = table.idle_prefilling()
    if len(prefilling) and bool(table.is_batch[prefilling].any()):
        return False
    head = model.waiting.by_class[ServiceClass.BATCH].head
    may_admit = head is not None and lets_batch_in(model)
    return not may_admit and not has_lent_prompts(model)


def lets_batch_in(model: ModelState) -> bool:
    """True where a batch sequence may take a slot, if there is memory."""
    table = model.slots
    if table.num_lent:
        return False
    return table.num_free > min(table.max_seqs - 1, -(-table.max_seqs // _SPARE_SLOTS))


def has_lent_prompts(model: ModelState) -> bool:
    """True where a sequence that lends has prompt left to compute."""
    table = model.slots
    if not (table.num_lent and table.num_prefilling):
        return False
    return bool((table.is_lent & table.is_prefilling).any())
