"""The padded batch as such: memory, and what its parts may share."""

import inspect

import numpy as np
import pytest
import torch

from muxcluster.engine.dense.axes import CacheAxes, Sample, UnknownCache
from muxcluster.engine.dense.forward import CACHE_NAMES
from muxcluster.engine.dense.model import DenseModel, NotDense
from muxcluster.engine.dense.prefill import prefill
from tests.engine.conftest import ModelBuilder
from tests.engine.dense.models import dense_model

LENGTHS = {0: 60, 1: 12, 2: 20}


def filled(model: DenseModel):  # type: ignore[no-untyped-def]
    prompts = [np.arange(length) for length in LENGTHS.values()]
    found = prefill(model.forward, model.axes, prompts)
    batch = model.batch()
    batch.embed({query: each.row for query, each in zip(LENGTHS, found, strict=True)})
    return batch


@torch.inference_mode()
def test_memory_returns_after_release(tiny: ModelBuilder) -> None:
    """Bytes are rows × columns × those of a token, and shrink with both."""
    batch = filled(dense_model(tiny("bloom")))
    per_token = batch.num_bytes // (3 * 60)
    assert per_token == 2 * 2 * 128 * 4  # K and V of two layers, fp32
    batch.keep([1, 2])
    assert batch.padding.length == 20
    assert batch.num_bytes == 2 * 20 * per_token
    batch.keep([])
    assert batch.num_bytes == 0 and batch.padding.num_rows == 0


@torch.inference_mode()
@pytest.mark.parametrize("family", ["bloom", "jamba"])
def test_a_saved_row_is_not_written_by_later_steps(tiny: ModelBuilder, family: str) -> None:
    """Models write to states of fixed size in place."""
    batch = filled(dense_model(tiny(family)))
    batch.keep([1])
    saved = batch.saved(1)
    first = batch.step({1: 5})
    batch.keep([])
    batch.embed({1: saved})
    assert batch.lengths[1] == LENGTHS[1]
    assert torch.equal(batch.step({1: 5}), first)


def test_caches_whose_axes_cannot_be_told_are_refused() -> None:
    def sample(rows: int, length: int) -> Sample:
        return Sample([torch.zeros(rows * 4, 8, length)], rows, length)

    with pytest.raises(UnknownCache, match="with its rows"):
        CacheAxes.found(sample(2, 7), sample(2, 8), sample(3, 7))


def test_counters_of_columns_follow_the_batch() -> None:
    """A cache of plain tuples that counts its tokens, as models of foreign code have."""

    def sample(rows: int, length: int) -> Sample:
        return Sample(((torch.ones(rows, 2, length, 3),) * 2, {"seen": length + 1}), rows, length)

    one = sample(2, 7)
    axes = CacheAxes.found(one, sample(2, 8), sample(3, 7))
    joined = axes.joined([one.cache, sample(1, 4).cache], 9, torch.device("cpu"))
    (keys, _), counters = joined
    assert keys.shape == (3, 2, 9, 3) and counters == {"seen": 10}
    assert keys[2, 0, :, 0].tolist() == [0] * 5 + [1] * 4
    (keys, _), counters = axes.selected(joined, [2], [5, 6, 7, 8])
    assert keys.shape == (1, 2, 4, 3) and counters == {"seen": 5}


def test_a_model_that_reads_padding_is_refused(tiny: ModelBuilder) -> None:
    """GPT-NeoX without its mask: what is padding counts as a token."""
    model = dense_model(tiny("gpt_neox")).forward.model

    takes = inspect.signature(model.forward).parameters
    name = next(each for each in CACHE_NAMES if each in takes)

    class Blind(type(model)):  # type: ignore[misc]
        def forward(self, input_ids, past_key_values=None, attention_mask=None, **options):  # type: ignore[no-untyped-def]
            return super().forward(input_ids=input_ids, **{name: past_key_values})

    blind = Blind(model.config).eval()
    blind.load_state_dict(model.state_dict())
    with pytest.raises(NotDense, match="padding on the left"):
        DenseModel.of(blind)
