"""The memory that a KV cache addresses, in small units, so that models of two shapes overlap."""

from dataclasses import dataclass

import numpy as np

from muxcluster.core.job import Side
from muxcluster.core.kvshape import KvShape
from muxcluster.kvcache.model import KvModel
from tests.blocks import block_tokens

UNIT_BYTES = 64
BLOCK = block_tokens(16)
BLOCK_BYTES = 2 * 128 * BLOCK * 4
UNITS = BLOCK_BYTES // 2 // UNIT_BYTES
# At 16 tokens 16 places of 512 bytes, and 24 of 320, which leave 512 bytes of each half unused.
WIDE = KvModel("wide", KvShape(2, 2, 128, 4), max_seqs=6, max_model_len=6 * BLOCK)
ODD = KvModel("odd", KvShape(3, 1, 80, 4), max_seqs=6, max_model_len=15 * BLOCK // 2)


@dataclass(frozen=True)
class Layout:
    """Where a model's tokens lie in a block."""

    block_tokens: int
    units: int
    # Blocks of a column whose layers see as far back as each other, and how far; 0: all tokens.
    kinds: tuple[tuple[tuple[int, ...], int], ...]

    @classmethod
    def of(cls, model: KvModel) -> "Layout":
        slot_bytes = model.shape.head_dim * model.shape.itemsize
        windowed = set(model.window_layers)
        layers = range(model.shape.num_layers)
        parts = (
            ([layer for layer in layers if layer not in windowed], 0),
            ([layer for layer in layers if layer in windowed], model.window),
        )
        heads = range(model.shape.num_kv_heads)
        kinds = tuple(
            (tuple(layer * len(heads) + head for layer in some for head in heads), window)
            for some, window in parts
            if some
        )
        return cls(BLOCK_BYTES // (2 * slot_bytes) // 8 * 8, slot_bytes // UNIT_BYTES, kinds)

    def first_seen(self, num_tokens: int, window: int) -> int:
        """The first column with a token that the next one sees."""
        return max(0, num_tokens + 1 - window) // self.block_tokens if window else 0

    def units_at(self, place: int) -> slice:
        return slice(place * self.units, (place + 1) * self.units)

    def at(self, position: int, side: Side) -> slice:
        """Units of a token, counted from its end of the block."""
        place = position % self.block_tokens
        return self.units_at(place if side is Side.LEFT else self.block_tokens - 1 - place)


class Memory:
    """Pool and host memory: each unit of a block's K half holds a number (V would be the same)."""

    def __init__(self, num_blocks: int, num_host_blocks: int) -> None:
        self.pool = np.zeros((num_blocks, UNITS), dtype=np.int64)
        self.host = np.zeros((num_host_blocks, UNITS), dtype=np.int64)

    def write(self, blocks: np.ndarray, units: slice, value: int) -> None:
        """Write a token to all blocks of its column; each holds a number of its own."""
        self.pool[blocks, units] = (value * 8 + np.arange(len(blocks)))[:, None]

    def column(
        self, blocks: np.ndarray, layout: Layout, side: Side, cells: tuple[int, ...]
    ) -> list[int]:
        """The tokens of a column, 0 where its blocks or a token's units do not agree.

        cells: which of the column's blocks to look at.
        """
        found = self.pool[blocks[list(cells)], : layout.block_tokens * layout.units]
        found = found.reshape(len(cells), layout.block_tokens, layout.units)
        found = found - np.array(cells)[:, None, None]
        tokens = np.where((found == found[:1, :, :1]).all(axis=(0, 2)), found[0, :, 0] // 8, 0)
        return (tokens if side is Side.LEFT else tokens[::-1]).tolist()


def copy_slots(source: np.ndarray, target: np.ndarray, layout: Layout, runs: np.ndarray) -> None:
    """Make the copies of SlotCopies between two memories (or within one), slot by slot."""
    for first, second, count in runs.tolist():
        for i in range(count):
            block, place = divmod(first + i, layout.block_tokens)
            other, goal = divmod(second + i, layout.block_tokens)
            target[other, layout.units_at(goal)] = source[block, layout.units_at(place)]
