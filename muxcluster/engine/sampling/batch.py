"""The rows of one sampling call, as every stage sees them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.engine.sampling.constrained import Allowed
from muxcluster.engine.sampling.parameters import SequenceSampling


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows of one sampling call, their history and their parameters."""

    table_rows: NDArray[np.int32]  # int [rows], row -> table row
    history: Tensor  # int32 [max_seqs, max_model_len + 1], prompt then output tokens
    lengths: NDArray[np.int32]  # int [rows], tokens in history before the one being sampled
    state: SequenceSampling
    allowed: Allowed | None = None  # of the rows with constraints; None: there are none

    @property
    def output_index(self) -> NDArray[np.int64]:
        """[rows], the index of the output token that each row samples, from 0."""
        return self.lengths - self.state.num_prompt_tokens[self.table_rows]
