"""How many padded batches of a dense model a unit may hold at the same time."""

# A module of its own, because the unit's process imports it and must not import torch.

from muxcluster.core.unitspec import UnitSpec

_COPIES = 2  # of a batch: while a new one is put together the old one exists, too


def num_batches(unit: UnitSpec) -> int:
    """Return how many padded batches of a model `unit` holds: two per runner that may hold one."""
    if unit.partition == "green":
        return _COPIES * sum(len(worker.shares) for worker in unit.workers)
    return _COPIES * len(unit.workers)
