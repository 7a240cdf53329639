"""One model of a unit as those that run its steps see it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.engine.forward.paged_forward import TokenForward
from muxcluster.engine.memory.arena import ModelArena
from muxcluster.engine.sampling.parameters import SequenceSampling
from muxcluster.engine.sampling.prompt_positions import PromptPositions

Numbers = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """pool: uint8 [num_blocks, block_bytes], shared by all models; arena: this model's part.

    sampling, prompts: what was admitted to its slots.
    """

    name: str
    forward: TokenForward
    pool: Tensor
    arena: ModelArena
    sampling: SequenceSampling
    prompts: PromptPositions
