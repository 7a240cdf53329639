"""Converts a row of a model's cache to bytes (some per token, some for states) and back."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from muxcluster.core.padded import RowBytes
from muxcluster.engine.dense.axes import CacheAxes, LeafAxes, Sample
from muxcluster.engine.dense.cachetree import Leaf, leaves, replaced


class RowLayout:
    """Order and sizes of the parts of a row; the same for every row of a model.

    token_bytes: per token, over all tensors with columns. state_bytes: of all states of fixed size.
    row_bytes: both.
    """

    def __init__(self, axes: CacheAxes, sample: Sample) -> None:
        """sample: a cache of the model; what belongs to no row is taken from it for all rows."""
        self._axes = axes
        self._template = axes.selected(sample.cache, [0], [sample.length - 1])
        growing = [leaf for leaf, each in self._tensors() if each.column is not None]
        fixed = [leaf for leaf, each in self._tensors() if each.column is None]
        self.token_bytes = sum(leaf.nbytes for leaf in growing)
        self.state_bytes = sum(leaf.nbytes for leaf in fixed)
        self.row_bytes = RowBytes(self.state_bytes, self.token_bytes)

    def tokens(self, cache: Any, width: int, behind: int, num_bytes: int) -> Tensor:
        """Return `width` columns, with `behind` more behind them: uint8 [rows, width, num_bytes].

        num_bytes: at least token_bytes; the rest is zeros.
        """
        parts = []
        for leaf, axes in self._tensors(cache):
            if axes.row is not None and axes.column is not None:
                some = leaf.narrow(axes.column, leaf.shape[axes.column] - behind - width, width)
                rows = some.movedim((axes.row, axes.column), (0, 1))
                parts.append(_bytes(rows.reshape(*rows.shape[:2], -1)))
        if num_bytes > self.token_bytes:
            first = parts[0]
            parts.append(first.new_zeros((*first.shape[:2], num_bytes - self.token_bytes)))
        return torch.cat(parts, dim=-1)

    def states(self, cache: Any) -> Tensor:
        """Return the states as uint8 [rows, state_bytes]."""
        parts = []
        for leaf, axes in self._tensors(cache):
            if axes.row is not None and axes.column is None:
                rows = leaf.movedim(axes.row, 0)
                parts.append(_bytes(rows.reshape(rows.shape[0], -1)))
        return torch.cat(parts, dim=-1)

    def cache(self, length: int, tokens: Tensor | None, states: Tensor | None) -> Any:
        """Return the cache of one row of `length` tokens.

        tokens: uint8 [length, token_bytes]. states: uint8 [state_bytes], None if there are none.
        """
        return replaced(self._template, self._values(length, tokens, states))

    def _values(self, length: int, tokens: Tensor | None, states: Tensor | None) -> Iterator[Leaf]:
        num_token_bytes = num_state_bytes = 0
        for leaf, axes in zip(leaves(self._template), self._axes.leaves, strict=True):
            if not isinstance(leaf, Tensor):
                yield length + axes.extra if axes.is_counter else leaf
            elif axes.row is None:
                yield leaf
            elif axes.column is None:
                assert states is not None, "states are missing"
                end = num_state_bytes + leaf.nbytes
                yield _as(states[num_state_bytes:end], leaf).view(leaf.shape)
                num_state_bytes = end
            else:
                assert tokens is not None, "tokens are missing"
                end = num_token_bytes + leaf.nbytes
                like = leaf.movedim((axes.row, axes.column), (0, 1))
                part = _as(tokens[:, num_token_bytes:end], leaf)
                part = part.view(1, length, *like.shape[2:])
                yield part.movedim((0, 1), (axes.row, axes.column))
                num_token_bytes = end

    def _tensors(self, cache: Any | None = None) -> Iterator[tuple[Tensor, LeafAxes]]:
        """Return the tensors with rows, of `cache` or of the template."""
        found = leaves(self._template if cache is None else cache)
        for leaf, axes in zip(found, self._axes.leaves, strict=True):
            if isinstance(leaf, Tensor) and axes.row is not None:
                yield leaf, axes


def _bytes(rows: Tensor) -> Tensor:
    return rows.contiguous().view(torch.uint8)


def _as(data: Tensor, like: Tensor) -> Tensor:
    whole = torch.empty(math.prod(data.shape), dtype=torch.uint8, device=data.device)
    whole.view(data.shape).copy_(data)
    return whole.view(like.dtype)
