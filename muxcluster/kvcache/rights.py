"""Whom the right side of each lent block belongs to, and how much of it is saved."""

import numpy as np


class RightOwners:
    """Per block of the pool; valid for blocks of lent columns and for sources of restores.

    models: uint8 [num_blocks], index of the model that fills the block from the right.
    cells: int64 [num_blocks], where in that model: column * blocks_per_column + index in it.
    saved: int16 [num_blocks], places of that model, from the left, that are empty or in the frame:
        left tokens may cover them. It starts at the first filled place.
    is_source: bool [num_blocks], True while a running job restores from the block.
    """

    def __init__(self, num_blocks: int) -> None:
        self.models = np.zeros(num_blocks, dtype=np.uint8)
        self.cells = np.zeros(num_blocks, dtype=np.int64)
        self.saved = np.zeros(num_blocks, dtype=np.int16)
        self.is_source = np.zeros(num_blocks, dtype=np.bool_)
