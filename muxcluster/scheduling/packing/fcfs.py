"""First come, first served: continuous batching as vLLM does it by default."""

from muxcluster.scheduling.packing.priority import PriorityPacking


class FcfsPacking(PriorityPacking):
    """Strict order of arrival, blind to class and priority; the latest is preempted first."""

    is_class_blind = True
