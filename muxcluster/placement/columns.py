"""Layout of a sequence in blocks: keys and values by token, states in columns of their own.

Or in those of tokens, where a model with states runs on its own cache.
"""

from dataclasses import dataclass

from muxcluster.core.kvshape import KvFormat, slots_of_block
from muxcluster.placement.shapes.shape import STATE_ITEMSIZE, ModelShape

_HEAD_BYTES = 8  # number of tokens that a state covers
_MOST_STATES, _ALIGNMENT = 2, 8  # tensors of a layer's state, and bytes at whose multiples they lie
_WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Columns:
    """Size of a column: `num_layers` x `num_heads` blocks; a token has 2 x head_dim elements in
    each."""

    num_layers: int
    num_heads: int
    head_dim: int
    tokens: int  # token slots of a block (`slots_of_block`); 0 if it is too small for 8
    # Layers that keep only the last `window` tokens of a sequence that runs.
    window: int = 0
    num_window_layers: int = 0
    state_columns: int = 0  # columns that a sequence has beside those of its tokens

    def num_blocks(self, num_tokens: int) -> int:
        """Return the blocks of a sequence of which every layer has all tokens."""
        columns = self.state_columns + -(-num_tokens // self.tokens)
        return columns * self.num_layers * self.num_heads

    def num_held(self, num_tokens: int) -> int:
        """Return the blocks that a sequence of so many tokens holds while it runs, at most."""
        columns = -(-num_tokens // self.tokens)
        seen = min(columns, -(-self.window // self.tokens) + 1)
        behind = self.num_window_layers * (columns - seen)
        return (self.num_layers * (self.state_columns + columns) - behind) * self.num_heads

    def num_fitting(self, num_blocks: int) -> int:
        """Return the tokens of one sequence that so many blocks hold, in whole columns."""
        columns = num_blocks // (self.num_layers * self.num_heads) - self.state_columns
        return max(0, columns) * self.tokens


def columns(shape: ModelShape, itemsize: int, block_bytes: int, num_tokens: float) -> Columns:
    """Return the column size of a model: by layer and KV head, or the best one for states.

    Where a model with states pages them, a sequence has columns of its own for them.

    Other models with states run on their own cache: a column holds one token's bytes at each
    position, and room for the states. A wider token makes columns shorter, so that more of them
    take room for states; a narrower one leaves more of a block empty. The width is the one at which
    a sequence of `num_tokens` takes least. A sequence longer than the longest column (block_bytes /
    (2 x itemsize) tokens) takes room for its states several times. States count as fp32, the
    largest usual dtype; a larger cache is refused when it is loaded.
    """
    if not shape.state_size or shape.pages_states:
        width, num_layers = shape.head_dim, shape.num_attention_layers
        tokens = slots_of_block(block_bytes, width, shape.kv_format(itemsize))
        windows = shape.window, len(shape.window_layers)
        states = _state_columns(shape, tokens * width * itemsize) if shape.pages_states else 0
        return Columns(num_layers, shape.num_kv_heads, width, tokens, *windows, states)
    found = [
        _with_states(shape, itemsize, width, tokens)
        for width in _WIDTHS
        if (tokens := slots_of_block(block_bytes, width, KvFormat(itemsize)))
    ]
    if not found:
        return Columns(1, 1, 1, 0)
    whole = max(1, round(num_tokens))
    return min(found, key=lambda each: each.num_blocks(whole))


def _state_columns(shape: ModelShape, half_bytes: int) -> int:
    """Return the columns of a sequence's states: each layer's begin at a half of a block.

    half_bytes: of a half, as far as tokens fill it; 0: none fits.
    """
    if not half_bytes:
        return 0
    elements = -(-shape.state_size // shape.num_state_layers)
    most_bytes = STATE_ITEMSIZE * elements + _MOST_STATES * _ALIGNMENT
    halves = -(-_HEAD_BYTES // half_bytes) + shape.num_state_layers * -(-most_bytes // half_bytes)
    return -(-halves // (2 * shape.num_attention_layers * shape.num_kv_heads))


def _with_states(shape: ModelShape, itemsize: int, width: int, tokens: int) -> Columns:
    """Return a column with tokens of `width` elements in each half of a block, and the states."""
    unit_bytes = 2 * width * itemsize
    state_bytes = STATE_ITEMSIZE * shape.state_size + _HEAD_BYTES
    for_tokens = -(-shape.kv_bytes_per_token(itemsize) // unit_bytes)
    return Columns(for_tokens - (-state_bytes // (tokens * unit_bytes)), 1, width, tokens)
