"""How a sequence's memory falls into blocks: keys and values by the token, states by the column."""

from dataclasses import dataclass

from muxcluster.placement.shapes.shape import STATE_ITEMSIZE, ModelShape

_HEAD_BYTES = 8  # Of the number of tokens that a state is of
_WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Columns:
    """A column is `num_layers` x `num_heads` blocks; a token has 2 x head_dim elements in each."""

    num_layers: int
    num_heads: int
    head_dim: int
    tokens: int  # that a block has places for, a multiple of 8; 0 where it is too small for 8

    def num_blocks(self, num_tokens: int) -> int:
        """Of a sequence of `num_tokens`."""
        return -(-num_tokens // self.tokens) * self.num_layers * self.num_heads


def columns(shape: ModelShape, itemsize: int, block_bytes: int, num_tokens: float) -> Columns:
    """Blocks by layer and KV head; of a model that keeps states, whatever holds them best.

    Such a model runs on its own cache, of which a column holds one token's bytes at each position
    and room for the states. The wider a token is in a block, the fewer tokens a column has and the
    oftener room for states is taken; the narrower, the more is left empty: the width is that at
    which a sequence of `num_tokens` takes least. One that is longer than the longest
    column (block_bytes / (2 x itemsize) tokens) takes room for its states several times. States
    count as fp32, which is most; a cache that is larger still is refused when it is loaded.
    """
    if not shape.state_size:
        width = shape.head_dim
        tokens = _block_tokens(block_bytes, width, itemsize)
        return Columns(shape.num_layers, shape.num_kv_heads, width, tokens)
    found = [
        _with_states(shape, itemsize, width, tokens)
        for width in _WIDTHS
        if (tokens := _block_tokens(block_bytes, width, itemsize))
    ]
    if not found:
        return Columns(1, 1, 1, 0)
    whole = max(1, round(num_tokens))
    return min(found, key=lambda each: each.num_blocks(whole))


def _with_states(shape: ModelShape, itemsize: int, width: int, tokens: int) -> Columns:
    """Blocks for tokens of `width` elements a half, and those that states fill."""
    unit_bytes = 2 * width * itemsize
    state_bytes = STATE_ITEMSIZE * shape.state_size + _HEAD_BYTES
    for_tokens = -(-shape.kv_bytes_per_token(itemsize) // unit_bytes)
    return Columns(for_tokens - (-state_bytes // (tokens * unit_bytes)), 1, width, tokens)


def _block_tokens(block_bytes: int, head_dim: int, itemsize: int) -> int:
    return block_bytes // (2 * head_dim * itemsize) // 8 * 8
