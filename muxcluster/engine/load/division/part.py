"""Parts of tensors: what one rank reads of a weight."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a tensor along one axis; of several ranges they lie one after another."""

    axis: int
    ranges: tuple[tuple[int, int], ...]  # first and end of each

    @classmethod
    def of_heads(cls, heads: Iterable[int], rows: int) -> "Part":
        """Return the rows of `heads`, of so many rows each, along axis 0."""
        return cls(0, tuple((head * rows, (head + 1) * rows) for head in heads))

    def within(self, first: int, length: int) -> "Part":
        """Return what this has of rows `first` to `first + length`, counted from `first`."""
        cut = ((max(low - first, 0), min(high - first, length)) for low, high in self.ranges)
        kept = tuple((low, high) for low, high in cut if low < high)
        return Part(self.axis, kept or ((0, 0),))

    def slices(self, num_axes: int) -> list[tuple[slice, ...]]:
        """Return one index for each range, of a tensor of so many axes."""
        every = (slice(None),)
        before, after = self.axis * every, (num_axes - self.axis - 1) * every
        return [(*before, slice(low, high), *after) for low, high in self.ranges]

    def of(self, tensor: Tensor) -> Tensor:
        """Return this part of `tensor`; a view if it is one range."""
        pieces = [tensor[index] for index in self.slices(tensor.ndim)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, self.axis)
