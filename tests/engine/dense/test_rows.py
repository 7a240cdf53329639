"""Rows of jobs through a model's own cache, by workers that meet in the pool alone."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from muxcluster.core.job import Rows
from muxcluster.core.padded import PaddedLimit
from muxcluster.engine.dense.rows import DenseRows
from muxcluster.engine.dense.store import RowStore
from muxcluster.engine.memory.arena import Arena
from muxcluster.engine.sampling.prompt_positions import Asked
from tests.engine.conftest import ModelBuilder
from tests.engine.dense.models import dense_model
from tests.engine.dense.units import unit_of

ROW = 0
NOTHING_ASKED = Asked((), np.zeros(0, dtype=np.int64))


def computed(worker: DenseRows, start: int, count: int) -> Tensor:
    """Logits after `count` tokens of the row from `start`."""
    table_rows, starts, counts = (np.array([each], dtype=np.int32) for each in (ROW, start, count))
    with torch.inference_mode():
        return worker.logits(
            Rows(table_rows, starts, counts, np.ones(1, dtype=np.bool_)), NOTHING_ASKED
        )


def test_a_row_s_next_sequence_is_read_from_the_pool(tiny: ModelBuilder) -> None:
    """One worker decoded the row's last sequence, another one prefilled the next, as long."""
    spec = unit_of({"bloom": tiny("bloom")}, ())
    (model_spec,) = spec.models
    memory = Arena(spec)
    arena = memory.model(model_spec.name)
    tables = arena.tables[ROW]
    tables.copy_(torch.arange(tables.numel()).view(tables.shape))
    model = dense_model(tiny("bloom"))
    store = RowStore(memory.pool, arena, model_spec.shape, model.layout)
    limit = PaddedLimit(model.layout.row_bytes, 1 << 20)
    decodes, prefills, fresh = (DenseRows(model, store, arena, limit) for _ in range(3))

    def has(tokens: Sequence[int]) -> None:
        arena.history[ROW, : len(tokens)] = torch.tensor(tokens)

    has([20, 21, 22, 23, 24, 25])
    computed(prefills, 0, 5)
    computed(decodes, 5, 1)
    assert decodes.batch.lengths[ROW] == 6
    for worker in (decodes, prefills):
        worker.forget(ROW)
    has([90, 80, 70, 60, 50, 40, 30])
    computed(prefills, 0, 6)
    torch.testing.assert_close(computed(decodes, 6, 1), computed(fresh, 6, 1))
