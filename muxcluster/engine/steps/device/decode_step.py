"""One decode step of a model on buffers at fixed addresses, so that it can be recorded."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.core.job import SharedPrefixes
from muxcluster.engine.forward.batch import GroupOffsets, SingleRows, TokenBatch
from muxcluster.engine.forward.loaded_model import LoadedModel, Numbers
from muxcluster.engine.forward.paged_attention import PagedAttention
from muxcluster.engine.forward.prefix_rows import fixed_groups
from muxcluster.engine.memory.upload import Array
from muxcluster.engine.sampling.plain import draw, filled, limits

# Position of a row that only fills up: its key and value are not written, it sees nothing.
_NOWHERE = -1


@dataclass(frozen=True, slots=True, eq=False)
class DecodeBuffers:
    """What a step reads and changes, of [rows] each."""

    outcome: Tensor  # int64 [1 + rows], broken rows so far, then the tokens of the last step
    # table_rows, positions: int64, where the step's tokens are; a row that fills up is nowhere
    table_rows: Tensor
    positions: Tensor
    # int64, the same in the flattened history; such a row's is in the history's last row
    places: Tensor
    advances: Tensor  # int64, 1, and 0 for such a row
    # group_offsets, prefix_lengths: int64, as of `prefix_rows.fixed_groups`
    group_offsets: Tensor
    prefix_lengths: Tensor
    # tokens, tiles: of rows with adapters, as `RowAdapters.arrays`; None: the model has none
    adapters: tuple[Tensor, Tensor] | None
    drawing: Sequence[Tensor]  # as of `plain.draw`


def decode_arrays(
    model: LoadedModel,
    table_rows: Numbers,
    starts: Numbers,
    uniform: NDArray[np.float64],
    prefixes: SharedPrefixes | None = None,
) -> list[Array]:
    """Return the arrays for `buffers_of`, of the rows that process one token each at `starts`.

    uniform: [rows of the step], as many as `table_rows` or more; the others fill up. prefixes: what
    the rows share, those of a group side by side.
    """
    num_rows = len(uniform)
    num_table_rows, width = model.arena.history.shape
    wide = table_rows.astype(np.int64)
    return [
        np.zeros(1 + num_rows, dtype=np.int64),
        filled(wide, num_rows, 0),
        filled(starts.astype(np.int64), num_rows, _NOWHERE),
        filled(wide * width + starts, num_rows, (num_table_rows - 1) * width),
        filled(np.ones_like(wide), num_rows, 0),
        *fixed_groups(prefixes, num_rows),
        *(model.adapters.arrays(table_rows, num_rows) if model.adapters else ()),
        *limits(model.sampling, table_rows, num_rows),
        uniform,
    ]


def buffers_of(tensors: Sequence[Tensor], *, has_adapters: bool = False) -> DecodeBuffers:
    """Return the buffers that `decode_arrays` were copied to. has_adapters: their model has."""
    outcome, table_rows, positions, places, advances, group_offsets, prefix_lengths = tensors[:7]
    adapters, drawing = None, tensors[7:]
    if has_adapters:
        adapters, drawing = (tensors[7], tensors[8]), tensors[9:]
    return DecodeBuffers(
        outcome,
        table_rows,
        positions,
        places,
        advances,
        group_offsets,
        prefix_lengths,
        adapters,
        drawing,
    )


class DecodeStep:
    """Computes logits, draws, and moves one token ahead; its buffers say where the rows are.

    logits: fp32 [rows, vocab], the output.
    """

    def __init__(
        self,
        model: LoadedModel,
        buffers: DecodeBuffers,
        logits: Tensor,
        *,
        shares: bool = False,
        is_adapted: bool = False,
    ) -> None:
        """shares: its attention reads the prefixes of the buffers' groups once. is_adapted: rows
        may have adapters."""
        self._forward = model.forward
        if is_adapted:
            assert model.adapters is not None and buffers.adapters is not None
            self._forward = model.adapters.step_forward(*buffers.adapters)
        self.buffers = buffers
        self.logits = logits
        self._groups = GroupOffsets(buffers.group_offsets, buffers.prefix_lengths)
        self._shares = shares
        self._model = model
        self._rows = torch.arange(len(buffers.table_rows), device=logits.device)
        self._ends = np.arange(len(buffers.table_rows))

    def run(self) -> None:
        self.compute()
        draw(self.logits, self.buffers.drawing, self.buffers.advances, self.buffers.outcome)
        self.go_on()

    def compute(self) -> None:
        """Compute logits of the rows' tokens; repeatable."""
        model, own = self._model, self.buffers
        tokens = model.arena.history.view(-1)[own.places].long()
        batch = TokenBatch(
            token_rows=own.table_rows,
            positions=own.positions,
            ends=self._ends,
            single=SingleRows(
                tokens=self._rows,
                table_rows=own.table_rows,
                lengths=own.positions + 1,
                groups=self._groups if self._shares else None,
            ),
            many=None,
            fresh=None,
        )
        attention = PagedAttention(model.pool, model.arena, batch)
        positions = own.positions.clamp(min=0)  # models look them up
        self._forward.logits(tokens, positions, attention, None, out=self.logits)

    def go_on(self) -> None:
        """Write the outcome's tokens to the history behind the rows, and move on to them."""
        own = self.buffers
        tokens = own.outcome[1:].to(torch.int32)
        self._model.arena.history.view(-1).scatter_(0, own.places + 1, tokens)
        own.positions.add_(own.advances)
        own.places.add_(own.advances)
