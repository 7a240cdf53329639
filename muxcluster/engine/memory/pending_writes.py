"""Writes of jobs to a model's arena, collected until they are made on its device."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from muxcluster.core.job import Admission, Side, TableDelta
from muxcluster.engine.memory.arena import ModelArena
from muxcluster.engine.memory.upload import Array

_NO_NUMBERS = np.empty(0, dtype=np.int64)
_NO_TOKENS = np.empty(0, dtype=np.int32)


class PendingWrites:
    """Tokens and sides of admitted sequences, and table entries; one indexed write of each."""

    def __init__(self, arena: ModelArena) -> None:
        self._arena = arena
        self._admissions: list[Admission] = []
        self._deltas: list[TableDelta] = []

    def admit(self, admission: Admission) -> None:
        """Add the row's side, and its tokens if the admission has them."""
        self._admissions.append(admission)

    def add_tables(self, delta: TableDelta) -> None:
        if len(delta):
            self._deltas.append(delta)

    def take(self) -> list[Array]:
        """Return all collected arrays as `write` takes them, and forget them; [] if none."""
        admissions, deltas = self._admissions, self._deltas
        self._admissions, self._deltas = [], []
        arrays: list[Array] = []
        if admissions:
            width = self._arena.history.shape[1]
            starts = [each.row * width + np.arange(len(each.tokens)) for each in admissions]
            arrays += [
                np.array([each.row for each in admissions], dtype=np.int64),
                np.array([each.side is Side.RIGHT for each in admissions]),
                np.concatenate([_NO_NUMBERS, *starts]),
                np.concatenate([_NO_TOKENS, *(each.tokens for each in admissions)]),
            ]
        if deltas:
            arrays += [
                np.concatenate([each.rows for each in deltas]).astype(np.int64),
                np.concatenate([each.columns for each in deltas]).astype(np.int64),
                np.concatenate([each.blocks for each in deltas]),
            ]
        return arrays

    def write(self, writes: Sequence[Tensor]) -> None:
        """Write the arrays that `take` returned, now on the device."""
        if len(writes) in (4, 7):
            rows, rights, places, tokens = writes[:4]
            self._arena.from_right[rows] = rights
            self._arena.history.view(-1)[places] = tokens
        if len(writes) in (3, 7):
            rows, columns, blocks = writes[-3:]
            tables = self._arena.tables
            tables[rows, :, :, columns] = blocks.view(len(blocks), *tables.shape[1:3])
