"""What the scaling of batches computes of a batch is what its tensors hold."""

import numpy as np
import torch

from muxcluster.core.padded import PaddedBatch
from muxcluster.engine.dense.batch import KeptRow
from muxcluster.engine.dense.prefill import prefill
from muxcluster.scheduling.state.batch_scaling import BatchScaling
from tests.engine.conftest import ModelBuilder
from tests.engine.dense.models import dense_model


@torch.inference_mode()
def test_what_it_computes_is_what_the_batch_holds(tiny: ModelBuilder) -> None:
    """Saved to host memory by the policy, a batch is as small as the policy said."""
    for family in ("bloom", "mamba", "jamba"):
        model = dense_model(tiny(family))
        lengths = {0: 6, 1: 30, 2: 14}
        found = prefill(model.forward, model.axes, [np.arange(n) for n in lengths.values()])
        kept = {query: each.row for query, each in zip(lengths, found, strict=True)}
        sizes = {query: model.axes.num_bytes(row.cache) for query, row in kept.items()}
        row_bytes = model.layout.row_bytes
        assert sizes == {query: row_bytes.of(1, length) for query, length in lengths.items()}
        batch = model.batch()
        batch.embed(kept)
        assert batch.num_bytes == row_bytes.of(3, 30)
        scaling = BatchScaling(row_bytes, batch.num_bytes, max_rows=3)
        num_staying = scaling.num_fitting(np.array(list(batch.lengths.values())))
        gone = list(batch.lengths)[num_staying:]
        assert gone == ([] if family == "mamba" else [2])
        saved: dict[int, KeptRow] = {query: batch.saved(query) for query in gone}
        batch.keep([query for query in batch.queries if query not in gone])
        batch.step(dict.fromkeys(batch.queries, 5))
        assert batch.num_bytes <= scaling.limit_bytes
        padding = batch.padding
        scaling.observe(PaddedBatch(padding.num_rows, padding.length, batch.num_bytes))
        assert scaling.overhead == 1
        assert [row.length for row in saved.values()] == [14] * len(gone)
