"""One model of a unit, as the code that runs its steps sees it."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.engine.forward.paged_forward import TokenForward
from muxcluster.engine.memory.arena import ModelArena
from muxcluster.engine.memory.upload import Array
from muxcluster.engine.sampling.constrained import ConstrainedRows
from muxcluster.engine.sampling.parameters import SequenceSampling
from muxcluster.engine.sampling.prompt_positions import PromptPositions

Numbers = NDArray[np.int32]


class RowsWithAdapters(Protocol):
    """Which adapters the rows of a model have: `adapters.forward.RowAdapters`."""

    def are_in(self, table_rows: Numbers) -> bool: ...

    def forward_of(
        self, table_rows: Numbers, counts: Numbers, device: torch.device
    ) -> TokenForward: ...

    def arrays(self, table_rows: Numbers, num_rows: int) -> list[Array]: ...

    def step_forward(self, tokens: Tensor, tiles: Tensor) -> TokenForward: ...

    def any_forward(self, num_tokens: int, device: torch.device) -> TokenForward: ...


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model's forward, memory and admitted sequences."""

    name: str
    forward: TokenForward
    pool: Tensor  # uint8 [num_blocks, block_bytes], shared by all models
    arena: ModelArena  # this model's part
    # sampling, prompts, constrained: what was admitted to its rows
    sampling: SequenceSampling
    prompts: PromptPositions
    constrained: ConstrainedRows
    most_recorded: int  # rows of the largest decode step that is recorded
    adapters: RowsWithAdapters | None = None  # None: the model has none
