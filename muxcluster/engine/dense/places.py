"""How many padded batches of a dense model a unit may hold at the same time."""

from muxcluster.core.unitspec import UnitSpec

_COPIES = 2  # Of a batch: while rows are put together there are those before, too


def num_batches(unit: UnitSpec) -> int:
    """Return how many padded batches of a model `unit` holds: two per runner that may hold one."""
    if unit.partition == "green":
        return _COPIES * sum(len(worker.shares) for worker in unit.workers)
    return _COPIES * len(unit.workers)
