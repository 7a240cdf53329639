"""Kinds of layers of one model: those that see all tokens, and those that see the last ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.kvshape import KvShape


@dataclass(frozen=True, slots=True, eq=False)
class LayerKind:
    """Layers of one model that need the blocks of a token for as long as each other."""

    name: str  # of no other kind of the unit
    # Where their blocks lie among those of a whole column of the model (layer-major), int [n].
    cells: NDArray[np.intp]
    window: int  # tokens that they see, the last one's own among them; 0: all

    def first_column(self, num_tokens: int, block_tokens: int) -> int:
        """Return the first column of which the token after `num_tokens` sees anything."""
        if not self.window:
            return 0
        return max(0, num_tokens + 1 - self.window) // block_tokens

    def first_columns(self, num_tokens: NDArray[np.int32], block_tokens: int) -> NDArray[np.int32]:
        """As `first_column`, of int32 [n], where there is a window."""
        first_seen = np.maximum(num_tokens + np.int32(1 - self.window), 0)
        first: NDArray[np.int32] = first_seen // np.int32(block_tokens)
        return first


def layer_kinds(
    name: str, shape: KvShape, window: int, window_layers: Sequence[int]
) -> tuple[LayerKind, ...]:
    """Return the kinds of layers of the model `name`, those that see all tokens first.

    window: tokens that `window_layers` see. Raises ValueError for layers that the shape has not, or
    a window of no tokens.
    """
    every, windowed = set(range(shape.num_layers)), set(window_layers)
    if not windowed <= every or (windowed and window < 1):
        raise ValueError(
            f"{name} has {shape.num_layers} layers: layers {sorted(windowed)} cannot have a window "
            f"of {window} tokens"
        )
    full = every - windowed
    kinds: list[LayerKind] = []
    if full:
        kinds.append(LayerKind(name, _cells(full, shape.num_kv_heads), 0))
    if windowed:
        own_name = f"{name}\0window" if full else name
        kinds.append(LayerKind(own_name, _cells(windowed, shape.num_kv_heads), window))
    return tuple(kinds)


def _cells(layers: set[int], num_heads: int) -> NDArray[np.intp]:
    first = np.array(sorted(layers), dtype=np.intp) * num_heads
    return (first[:, None] + np.arange(num_heads, dtype=np.intp)).flatten()
