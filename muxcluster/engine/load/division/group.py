"""What the ranks of a unit tell each other during a forward, as the layers see it."""

from typing import Protocol

from torch import Tensor


class RankGroup(Protocol):
    """rank: this process's place, 0 to size - 1. Every rank makes the same calls in the same order,
    with tensors of the same shapes."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, partial: Tensor) -> Tensor:
        """The sum over all ranks, in place of `partial`, which is contiguous and returned."""
        ...

    def gather(self, part: Tensor) -> Tensor:
        """[..., n] of each rank to [..., size * n] in the order of ranks, the same bits on all."""
        ...
