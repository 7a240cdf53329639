"""Forward of a model with states, and attention of one batch beside the states of its rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from muxcluster.core.errors import LoadError
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.forward.attention import LayerAttention, LayerCall
from muxcluster.engine.forward.paged_forward import Forward
from muxcluster.engine.states.layout import StateLayout, layout_of
from muxcluster.engine.states.mixers import Mix, MixerStates
from muxcluster.engine.states.store import StateStore


class StatefulForward(Forward):
    """Runs a model with states; its batches are `StatefulBatch`es."""

    def __init__(self, model: nn.Module, layout: StateLayout) -> None:
        super().__init__(model)
        self.layout = layout


def stateful_forward(model: nn.Module, spec: ModelSpec, block_bytes: int) -> StatefulForward:
    """Return the forward of a model whose sequences have columns for their states.

    Raises LoadError naming config.json where these are too few, or it has no states that we know.
    """
    layout, shape = layout_of(model), spec.shape
    file = Path(spec.path, "config.json")
    if not layout.layers:
        raise LoadError(file, "it has no layers with states that can be served paged")
    half_bytes = shape.block_tokens(block_bytes) * shape.head_dim * shape.itemsize
    needed = layout.ends(half_bytes)[-1]
    planned = 2 * spec.state_columns * shape.blocks_per_column
    if needed > planned:
        message = f"its states take {needed} halves of blocks, and {planned} are planned"
        raise LoadError(file, message)
    return StatefulForward(model, layout)


@dataclass(frozen=True, slots=True, eq=False)
class RowGroup:
    """Rows of equally many tokens, which all begin or all go on."""

    tokens: Tensor  # int64 [rows, tokens of each], where they lie in the flattened batch
    halves: Tensor  # int64 [rows, halves], as of `StateStore.halves`
    begins: bool


class StatefulBatch:
    """Attention of one batch, and the states of its rows: passed as `attention_batch`."""

    def __init__(
        self, attention: LayerAttention, store: StateStore, groups: Sequence[RowGroup]
    ) -> None:
        """groups: every row of the batch is in one of them."""
        self._attention = attention
        self._store = store
        self._groups = groups

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        return self._attention.attend(query, key, value, call)

    def attend_latent(self, query: Tensor, latent: Tensor, call: LayerCall) -> Tensor:
        return self._attention.attend_latent(query, latent, call)

    def recur(self, hidden: Tensor, layer: int, mix: Mix) -> Tensor:
        """As `StatesOfRows.recur`: states are read from the pool, and written back behind."""
        output = torch.empty_like(hidden)
        for group in self._groups:
            states = MixerStates() if group.begins else self._store.read(group.halves, layer)
            output[0, group.tokens] = mix(hidden[0, group.tokens], states)
            self._store.write(group.halves, layer, states)
        return output
