"""Who lent each block, where its tokens lie, and how much of them is saved."""

import numpy as np


class RightOwners:
    """Per block of the pool; valid for blocks of lent columns and for sources of restores.

    Who lends a block is its right owner from then on, also an interactive sequence, whose tokens
    lie from the left: whoever takes the block is the left one.

    models: uint8 [num_blocks], index of the model of the lender.
    cells: int64 [num_blocks], where in that model: column * blocks_per_column + index in it.
    saved: int16 [num_blocks], places of that model, from the left, that are empty or in the frame:
        left tokens may cover them. It starts at the first filled place.
    ends: int16 [num_blocks], the end of the filled places: all is saved where `saved` reaches it.
    is_left: bool [num_blocks], True where the lender is an interactive sequence.
    is_source: bool [num_blocks], True while a running job restores from the block.
    """

    def __init__(self, num_blocks: int) -> None:
        self.models = np.zeros(num_blocks, dtype=np.uint8)
        self.cells = np.zeros(num_blocks, dtype=np.int64)
        self.saved = np.zeros(num_blocks, dtype=np.int16)
        self.ends = np.zeros(num_blocks, dtype=np.int16)
        self.is_left = np.zeros(num_blocks, dtype=np.bool_)
        self.is_source = np.zeros(num_blocks, dtype=np.bool_)
