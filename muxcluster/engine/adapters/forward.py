"""A model with adapters: its forward for tokens without one, and for tokens of several."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import Admission
from muxcluster.engine.adapters.places import PlacedAdapters
from muxcluster.engine.adapters.tokens import (
    NO_ADAPTER,
    AdapterTokens,
    CurrentTokens,
    by_adapter,
)
from muxcluster.engine.forward.attention import LayerAttention
from muxcluster.engine.forward.paged_forward import TokenForward
from muxcluster.engine.memory.upload import Array
from muxcluster.engine.sampling.plain import filled
from muxcluster.kernels.products.low_rank_update import TILE_TOKENS

_UNREAD = NO_ADAPTER - 1  # of a row whose adapter could not be read


@dataclass(frozen=True, slots=True, eq=False)
class AdaptedForward:
    """A `TokenForward` of the model itself, and of its adapters."""

    plain: TokenForward
    adapted: TokenForward  # the same, on linears that look at `current`
    current: CurrentTokens
    names: tuple[str, ...]  # of the adapters that were there from the start
    places: PlacedAdapters | None = None  # of others; None: none may come

    @property
    def windows(self) -> tuple[int | None, ...]:
        return self.plain.windows

    def logits(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention: LayerAttention,
        wanted: Tensor | None,
        out: Tensor | None = None,
    ) -> Tensor:
        return self.plain.logits(tokens, positions, attention, wanted, out)

    def of(self, tokens: AdapterTokens) -> TokenForward:
        """Return the forward of a batch of these tokens."""
        return _ForwardOf(self, tokens) if len(tokens.tokens) else self.plain


@dataclass(frozen=True, slots=True, eq=False)
class _ForwardOf:
    """The forward of one batch."""

    model: AdaptedForward
    batch: AdapterTokens

    @property
    def windows(self) -> tuple[int | None, ...]:
        return self.model.windows

    def logits(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention: LayerAttention,
        wanted: Tensor | None,
        out: Tensor | None = None,
    ) -> Tensor:
        current = self.model.current
        current.tokens = self.batch
        try:
            return self.model.adapted.logits(tokens, positions, attention, wanted, out)
        finally:
            current.tokens = None


class RowAdapters:
    """Which adapter the sequence in each row of a model's tables has."""

    def __init__(self, forward: AdaptedForward, num_rows: int) -> None:
        self._forward = forward
        self._places = {name: place for place, name in enumerate(forward.names)}
        self._of_row = np.full(num_rows, NO_ADAPTER, dtype=np.int32)

    def admit(self, admission: Admission) -> None:
        """Note the adapter of a row, if it has one, and read one that came later.

        Raises KeyError for one that the model has not, LoadError for files that cannot be read.
        """
        row, adapter, places = admission.row, admission.adapter, self._forward.places
        self._of_row[row] = _UNREAD if adapter else NO_ADAPTER
        if admission.adapter_path and places is not None:
            place, path = admission.adapter_place, admission.adapter_path
            self._of_row[row] = places.put(place, adapter, path)
        elif adapter:
            self._of_row[row] = self._places[adapter]

    def are_in(self, table_rows: NDArray[np.int32]) -> bool:
        """Return whether some of the rows have an adapter.

        Raises EngineFailure for one whose adapter could not be read.
        """
        adapters = self._of_row[table_rows]
        if (adapters == _UNREAD).any():
            raise EngineFailure("the adapter of a row could not be read")
        return bool((adapters != NO_ADAPTER).any())

    def arrays(self, table_rows: NDArray[np.int32], num_rows: int) -> list[Array]:
        """Return the arrays for `step_forward` of `num_rows` rows of one token each.

        Rows beyond `table_rows` have no adapter.
        """
        adapters = filled(self._of_row[table_rows], num_rows, NO_ADAPTER)
        tokens, tiles = by_adapter(adapters, TILE_TOKENS)
        all_tiles = np.zeros((num_rows, 3), dtype=np.int32)
        all_tiles[: len(tiles)] = tiles
        return [filled(tokens, num_rows, 0), all_tiles]

    def step_forward(self, tokens: Tensor, tiles: Tensor) -> TokenForward:
        """Return the forward of a step that reads `arrays` from these buffers when it runs."""
        return self._forward.of(AdapterTokens(tokens, tiles, len(tokens)))

    def any_forward(self, num_tokens: int, device: torch.device) -> TokenForward:
        """Return the forward of tokens that all have the first adapter, of no sequence."""
        adapters = np.zeros(num_tokens, dtype=np.int32)
        return self._forward.of(AdapterTokens.of(adapters, device))

    def forward_of(
        self, table_rows: NDArray[np.int32], counts: NDArray[np.int32], device: torch.device
    ) -> TokenForward:
        """Return the forward of rows that process `counts` tokens each, one after the other."""
        if not self.are_in(table_rows):
            return self._forward.plain
        adapters = np.repeat(self._of_row[table_rows], counts)
        return self._forward.of(AdapterTokens.of(adapters, device))
