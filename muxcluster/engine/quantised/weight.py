"""A weight in few bits, in one layout for all formats."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from muxcluster.kernels.products.quantised_product import MIDDLE, unpacked


class CannotCut(ValueError):
    """A part of a weight begins or ends amid inputs that share a scale."""


@dataclass(frozen=True, slots=True, eq=False)
class QuantisedWeight:
    """The weight of a linear: [out, in] elements (value - zero) * scale, rows of whole groups.

    Inputs `g * group` to `(g + 1) * group` of a row share scale and zero `g`.
    """

    # int8 or float8_e4m3fn [out, in]; of 4 bits uint8 [out, in / 2], even inputs in the lower half
    values: Tensor
    scales: Tensor  # fp32 [out, groups]
    zeros: Tensor | None  # fp32 [out, groups]; None: all 8 for 4 bits, else 0
    group: int
    order: Tensor | None = None  # int64 [in]: column i is of input order[i]; None: as they are

    @property
    def is_packed(self) -> bool:
        """Whether elements have 4 bits, two in a byte."""
        return self.values.dtype == torch.uint8

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        num_out, num_stored = self.values.shape
        return num_out, num_stored * (2 if self.is_packed else 1)

    @property
    def nbytes(self) -> int:
        """Bytes of all of its tensors."""
        return sum(each.nbytes for each in self.tensors())

    def tensors(self) -> list[Tensor]:
        """Return values, scales, and zeros and order where there are any."""
        kept = (self.values, self.scales, self.zeros, self.order)
        return [each for each in kept if each is not None]

    def dense(self, dtype: torch.dtype) -> Tensor:
        """Return the weight [out, in], its columns in the order of `values`.

        Computed in fp32, or in `dtype` if that is wider, and rounded once.
        """
        exact = torch.promote_types(dtype, torch.float32)
        num_out, num_in = self.shape
        values = unpacked(self.values).to(exact).view(num_out, -1, self.group)
        if self.zeros is not None:
            values = values - self.zeros.unsqueeze(-1)
        elif self.is_packed:
            values = values - MIDDLE
        return (values * self.scales.unsqueeze(-1)).view(num_out, num_in).to(dtype)

    def rows(self, index: Tensor | slice) -> "QuantisedWeight":
        """Return some outputs, in the order of `index`."""
        zeros = None if self.zeros is None else self.zeros[index]
        return replace(self, values=self.values[index], scales=self.scales[index], zeros=zeros)

    def part(self, axis: int, ranges: Sequence[tuple[int, int]]) -> "QuantisedWeight":
        """Return outputs (axis 0) or inputs (1) of some ranges, one after the other.

        Raises CannotCut.
        """
        if axis == 0:
            pieces = [self.rows(slice(*bounds)) for bounds in ranges]
            return pieces[0] if len(pieces) == 1 else joined(pieces)
        if self.order is not None or len(ranges) > 1:
            raise CannotCut("its inputs are in an order of their own")
        return self._columns(*ranges[0])

    def to(self, device: str) -> "QuantisedWeight":
        """Return a copy on `device` that keeps nothing else alive."""

        def own(tensor: Tensor) -> Tensor:
            return tensor.to(device, copy=True, memory_format=torch.contiguous_format)

        return QuantisedWeight(
            own(self.values),
            own(self.scales),
            None if self.zeros is None else own(self.zeros),
            self.group,
            None if self.order is None else own(self.order),
        )

    def _columns(self, first: int, end: int) -> "QuantisedWeight":
        _, num_in = self.shape
        group = self.group
        if group == num_in:
            groups = slice(None)
            group = end - first
        elif first % group or end % group and end != num_in:
            raise CannotCut(f"inputs {first} to {end} are not whole groups of {group}")
        else:
            groups = slice(first // group, -(-end // group))
        if self.is_packed and (first % 2 or end % 2):
            raise CannotCut(f"inputs {first} to {end} are not whole bytes")
        step = 2 if self.is_packed else 1
        return replace(
            self,
            values=self.values[:, first // step : end // step],
            scales=self.scales[:, groups],
            zeros=None if self.zeros is None else self.zeros[:, groups],
            group=group,
        )


def packed(values: Tensor) -> Tensor:
    """Return integers 0 to 15, [out, in] with `in` even, as uint8 [out, in / 2]."""
    small = values.to(torch.uint8)
    return small[:, 0::2] | (small[:, 1::2] << 4)


def joined(weights: Sequence[QuantisedWeight]) -> QuantisedWeight:
    """Return one weight with the outputs of all, one after the other; they are alike."""
    first = weights[0]
    zeros = [each.zeros for each in weights if each.zeros is not None]
    return replace(
        first,
        values=torch.cat([each.values for each in weights]),
        scales=torch.cat([each.scales for each in weights]),
        zeros=torch.cat(zeros) if zeros else None,
    )


def are_alike(weights: Sequence[QuantisedWeight]) -> bool:
    """Return whether `joined` can join them."""
    kinds = {
        (each.values.dtype, each.values.shape[1], each.group, each.zeros is None)
        for each in weights
    }
    return len(kinds) == 1 and all(each.order is None for each in weights)
