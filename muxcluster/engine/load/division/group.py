"""Protocol of the ranks of a unit during a forward, as the layers see it."""

from typing import Protocol

from torch import Tensor


class RankGroup(Protocol):
    """The ranks of a unit; every rank makes the same calls in the same order, with equal shapes.

    rank: this process's place, 0 to size - 1.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, partial: Tensor) -> Tensor:
        """Sum over all ranks, in place of `partial`, which is contiguous and returned."""
        ...

    def gather(self, part: Tensor) -> Tensor:
        """Return [..., size * n] from [..., n] of each rank in order, the same bits on all."""
        ...
