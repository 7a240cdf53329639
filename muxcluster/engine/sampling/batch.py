"""One sampling call's rows, as every stage sees them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.engine.sampling.parameters import SequenceSampling


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """slots: int [rows], row -> slot. history: int32 [max_seqs, max_model_len + 1], prompt then
    output tokens. lengths: int [rows], tokens in history before the one being sampled.
    """

    slots: NDArray[np.int32]
    history: Tensor
    lengths: NDArray[np.int32]
    state: SequenceSampling

    @property
    def output_index(self) -> NDArray[np.int64]:
        """[rows], which output token of its request each row samples, from 0."""
        return self.lengths - self.state.num_prompt_tokens[self.slots]
