"""Axes of rows and columns in a model's cache, and what re-batching does to them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from muxcluster.engine.dense.cachetree import Leaf, leaves, rebuilt, replaced


@dataclass(frozen=True, slots=True)
class LeafAxes:
    """Axes of one leaf of a cache.

    Of a tensor, the axes of rows and of columns, None where it has none; of an integer, whether it
    counts the columns, and how many more it is.
    """

    row: int | None = None
    column: int | None = None
    is_counter: bool = False
    extra: int = 0


class UnknownCache(ValueError):
    """The rows or columns of a cache cannot be found; the message is for people."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A cache that the model made of `rows` prompts of `length` tokens."""

    cache: Any
    rows: int
    length: int


@dataclass(frozen=True, slots=True)
class CacheAxes:
    """How a model's cache is laid out; each call makes new tensors and leaves its caches alone."""

    # in the order of `cachetree.leaves`. A tensor without columns is a state of fixed size (Mamba
    # and others), whose row is replaced whole.
    leaves: tuple[LeafAxes, ...]

    @classmethod
    def found(cls, one: Sample, longer: Sample, wider: Sample) -> "CacheAxes":
        """Find the axes by comparing: `longer` has one more token per row than `one`, `wider` more
        rows.

        Raises UnknownCache where an axis is neither, or does not grow as rows or columns do.
        """
        parts = [leaves(sample.cache) for sample in (one, longer, wider)]
        if len({len(part) for part in parts}) != 1:
            raise UnknownCache("its cache has more parts for more tokens or rows")
        trios = zip(*parts, strict=True)
        return cls(tuple(_axes(a, b, c, one, wider) for a, b, c in trios))

    @property
    def has_fixed_states(self) -> bool:
        """True if some state does not grow with the tokens: padding in a row would change it."""
        return any(each.row is not None and each.column is None for each in self.leaves)

    def num_bytes(self, cache: Any) -> int:
        """Return the memory that the tensors hold, as allocated; shared memory counts once."""
        storages = {
            storage.data_ptr(): storage.nbytes()
            for leaf, axes in zip(leaves(cache), self.leaves, strict=True)
            if isinstance(leaf, Tensor) and axes.row is not None
            for storage in (leaf.untyped_storage(),)
        }
        return sum(storages.values())

    def selected(self, cache: Any, rows: Sequence[int], columns: Sequence[int]) -> Any:
        """Return the given rows and columns of `cache`, in this order."""
        places = iter(self.leaves)

        def change(leaf: Leaf) -> Leaf:
            axes = next(places)
            if not isinstance(leaf, Tensor):
                return len(columns) + axes.extra if axes.is_counter else leaf
            leaf = _picked(leaf, axes.row, rows)
            return _picked(leaf, axes.column, columns)

        return rebuilt(cache, change)

    def joined(self, caches: Sequence[Any], length: int, device: torch.device) -> Any:
        """Return all rows of `caches` as `length` columns on `device`, aligned at their ends."""
        # What is missing on the left is filled with zeros: a masked key's probability is 0, but 0
        # times whatever the memory held before need not be 0.
        parts = [leaves(cache) for cache in caches]
        values = (self._joined(each, axes, length, device) for each, axes in self._by_leaf(parts))
        return replaced(caches[0], values)

    def widened(self, cache: Any, num_rows: int) -> Any:
        """Return `cache` with `num_rows` more rows of zeros."""
        places = iter(self.leaves)

        def change(leaf: Leaf) -> Leaf:
            axes = next(places)
            if not isinstance(leaf, Tensor) or axes.row is None:
                return leaf
            shape = list(leaf.shape)
            shape[axes.row] = num_rows
            return torch.cat((leaf, leaf.new_zeros(shape)), dim=axes.row)

        return rebuilt(cache, change)

    def copied(self, cache: Any, device: torch.device) -> Any:
        """Return a copy of `cache` on `device`: models write to states of fixed size in place."""

        def copy(leaf: Leaf) -> Leaf:
            return leaf.to(device, copy=True) if isinstance(leaf, Tensor) else leaf

        return rebuilt(cache, copy)

    def _by_leaf(self, parts: Sequence[list[Leaf]]) -> Iterator[tuple[tuple[Leaf, ...], LeafAxes]]:
        return zip(zip(*parts, strict=True), self.leaves, strict=True)

    @staticmethod
    def _joined(parts: Sequence[Leaf], axes: LeafAxes, length: int, device: torch.device) -> Leaf:
        first = parts[0]
        if not isinstance(first, Tensor):
            return length + axes.extra if axes.is_counter else first
        if axes.row is None:
            return first.to(device)
        tensors = [part for part in parts if isinstance(part, Tensor)]
        ends = [0]
        for tensor in tensors:
            ends.append(ends[-1] + tensor.shape[axes.row])
        shape = list(first.shape)
        shape[axes.row] = ends[-1]
        if axes.column is not None:
            shape[axes.column] = length
        whole = first.new_zeros(shape, device=device)
        for tensor, (start, end) in zip(tensors, pairwise(ends), strict=True):
            place = whole.narrow(axes.row, start, end - start)
            if axes.column is not None:
                width = tensor.shape[axes.column]
                place = place.narrow(axes.column, length - width, width)
            place.copy_(tensor)
        return whole


def _picked(tensor: Tensor, axis: int | None, places: Sequence[int]) -> Tensor:
    """Return a selection in memory of its own if the axis exists and something is left out."""
    if axis is None or len(places) == tensor.shape[axis]:
        return tensor
    return tensor.index_select(axis, torch.as_tensor(places, device=tensor.device))


def _axes(one: Leaf, longer: Leaf, wider: Leaf, sample: Sample, wide: Sample) -> LeafAxes:
    if not (isinstance(one, Tensor) and isinstance(longer, Tensor) and isinstance(wider, Tensor)):
        if isinstance(one, int) and isinstance(longer, int) and longer == one + 1:
            return LeafAxes(is_counter=True, extra=one - sample.length)
        return LeafAxes()
    if not one.ndim == longer.ndim == wider.ndim:
        raise UnknownCache("its cache changes its number of axes")
    row = _axis(one, wider, "rows", (sample.rows, wide.rows))
    column = _axis(one, longer, "tokens", (sample.length, sample.length + 1))
    if column is not None and (row is None or row == column):
        raise UnknownCache("its cache has tokens of several rows on one axis")
    return LeafAxes(row, column)


def _axis(one: Tensor, other: Tensor, of: str, expected: tuple[int, int]) -> int | None:
    changed = [axis for axis in range(one.ndim) if one.shape[axis] != other.shape[axis]]
    if not changed:
        return None
    sizes = [(one.shape[axis], other.shape[axis]) for axis in changed]
    if sizes != [expected]:
        raise UnknownCache(f"its cache grows from {one.shape} to {other.shape} with its {of}")
    return changed[0]
