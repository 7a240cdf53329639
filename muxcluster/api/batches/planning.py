"""In which order the lines of a batch start."""

from collections.abc import Callable, Sequence
from typing import Protocol

from muxcluster.batch.job import Batch
from muxcluster.batch.store import Pending

Read = Callable[[Pending], bytes]


class Planner(Protocol):
    """Decides on the order of the lines that are left."""

    async def order(self, batch: Batch, lines: Sequence[Pending], read: Read) -> Sequence[Pending]:
        """All of `lines`, of all models, in the order they should start; each model has slots of
        its own, so lines of different models do not wait for each other."""
        ...


class FileOrder:
    """As they stand in the file."""

    async def order(self, batch: Batch, lines: Sequence[Pending], read: Read) -> Sequence[Pending]:
        return lines
