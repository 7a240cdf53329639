"""Runs rows of a model whose keys and values, and states, are in the pool."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.core.job import Rows
from muxcluster.core.kvshape import KvShape
from muxcluster.engine.forward.attention import LayerAttention
from muxcluster.engine.forward.batch import TokenBatch, token_batch
from muxcluster.engine.forward.cpu_attention import PlannedAttention
from muxcluster.engine.forward.paged_attention import PagedAttention
from muxcluster.engine.memory.arena import ModelArena
from muxcluster.engine.sampling.prompt_positions import Asked
from muxcluster.engine.states.forward import RowGroup, StatefulBatch, StatefulForward
from muxcluster.engine.states.store import StateStore

_Numbers = NDArray[np.int32]


class StatefulRows:
    """Runs rows: those that decode together, others with those of as many tokens.

    Attention writes the same keys and values however often a token is computed; a state that a
    token changed twice is wrong. So each row's states tell of how many tokens they are, and nothing
    while a forward changes them. Where that is not where the row goes on (its job failed amid its
    forward and is run again), the row is computed from its first token.
    """

    padded = None  # rows of different lengths are never in one batch

    def __init__(
        self, forward: StatefulForward, pool: Tensor, arena: ModelArena, shape: KvShape
    ) -> None:
        """pool: uint8 [num_blocks, block_bytes]; arena: the model's part. shape: of its keys and
        values."""
        self._forward = forward
        self._pool = pool
        self._arena = arena
        self._store = StateStore(pool, arena, shape, forward.layout)

    def logits(self, rows: Rows, asked: Asked) -> Tensor:
        """As `RowsForward.logits`."""
        arena, store, device = self._arena, self._store, self._pool.device
        halves = store.halves(rows.table_rows)
        starts = self._starts(rows, halves)
        ends = rows.starts + rows.counts
        batch = token_batch(rows.table_rows, starts, ends - starts, device)
        wanted = np.concatenate((batch.ends[rows.samples], _moved(asked.tokens, rows, batch)))
        tokens = arena.history[batch.token_rows, batch.positions].long()
        some = wanted if len(wanted) else np.zeros(1, dtype=np.int64)
        attention = StatefulBatch(
            self._attention(batch), store, _groups(starts, ends - starts, batch.ends, halves)
        )
        store.mark(halves, np.full(len(rows), -1))
        logits = self._forward.logits(
            tokens, batch.positions, attention, torch.from_numpy(some).to(device)
        )
        store.mark(halves, ends)
        return logits[: len(wanted)]

    def forget(self, row: int) -> None:
        """Do nothing: a sequence that begins reads no states."""

    def _starts(self, rows: Rows, halves: Tensor) -> _Numbers:
        """Return where each row goes on: at its start, or at 0 where its states are not of it."""
        if not rows.starts.any():
            return rows.starts
        starts: _Numbers = np.where(self._store.lengths(halves) == rows.starts, rows.starts, 0)
        return starts.astype(np.int32)

    def _attention(self, batch: TokenBatch) -> LayerAttention:
        if self._pool.device.type == "cpu":
            return PlannedAttention(self._pool, self._arena, batch)
        return PagedAttention(self._pool, self._arena, batch)


def _moved(tokens: NDArray[np.int64], rows: Rows, batch: TokenBatch) -> NDArray[np.int64]:
    """Return where `tokens` of the flattened batch of `rows` lie in `batch`, int64 [n].

    Its rows may begin earlier; they end with the same tokens.
    """
    ends = np.cumsum(rows.counts, dtype=np.int64) - 1
    owners = np.searchsorted(ends, tokens)
    moved: NDArray[np.int64] = tokens + (batch.ends - ends)[owners]
    return moved


def _groups(
    starts: _Numbers, counts: _Numbers, ends: NDArray[np.int64], halves: Tensor
) -> list[RowGroup]:
    """Return the rows by their number of tokens, and whether they begin.

    ends: int64 [rows], the last token of each in the flattened batch.
    """
    kinds = 2 * counts.astype(np.int64) + (starts == 0)
    groups: list[RowGroup] = []
    for kind in np.unique(kinds).tolist():
        rows = np.flatnonzero(kinds == kind)
        count, begins = divmod(kind, 2)
        tokens = ends[rows, None] - np.arange(count - 1, -1, -1)
        where = torch.from_numpy(rows).to(halves.device)
        there = torch.from_numpy(tokens).to(halves.device)
        groups.append(RowGroup(there, halves[where], bool(begins)))
    return groups
