"""Steps in one call of the C++ kernels give the logits, keys and values of many calls."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from muxcluster.core.job import SharedPrefixes
from muxcluster.engine.decoders.torch_decoder import FusedDecoder
from muxcluster.engine.decoders.torch_fusing import fuse, is_fusible, native_step
from muxcluster.engine.forward.batch import token_batch
from muxcluster.engine.forward.cpu_attention import PlannedAttention
from muxcluster.engine.load.paged_loading import load_model
from muxcluster.engine.memory.arena import ModelArena
from tests.engine.conftest import ModelBuilder
from tests.engine.decoders.decode_rows import Rows
from tests.engine.forward.test_batch import CPU, arrays
from tests.kernels.native.switch import two_threads
from tests.models import model_spec

__all__ = ["two_threads"]

MODELS = {
    "llama": ("llama", {}),
    "grouped, with biases": (
        "llama",
        {"num_attention_heads": 6, "num_key_value_heads": 2, "attention_bias": True},
    ),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "window": ("mistral", {"sliding_window": 16}),
    "qwen2": ("qwen2", {}),
    "head norms": ("qwen3", {"head_dim": 128}),
}


def _decoder(directory: Path, **fields: object) -> FusedDecoder:
    model = load_model(model_spec(directory, "m", **fields), "cpu")
    assert is_fusible(model)
    return fuse(model, 64)


def _check(
    decoder: FusedDecoder,
    num_rows: int,
    wanted: Tensor | None = None,
    kv_dtype: torch.dtype | None = None,
    counts: Sequence[int] = (),
) -> None:
    """counts: of the new tokens of the first rows."""
    rows, dtype = Rows(decoder, num_rows, kv_dtype, counts), decoder.embeddings.dtype
    logits, pool = rows.run(decoder, wanted)
    expected, written = rows.run(replace(decoder, step=None), wanted)
    # a number near the middle between two of few bits falls either way
    is_exact = dtype == torch.float32 and kv_dtype is None
    limit = 1e-5 if is_exact else 0.05
    size = float(expected.abs().max())
    torch.testing.assert_close(logits, expected, rtol=0, atol=limit * size)
    if kv_dtype is None:
        found, should = pool.view(dtype).float(), written.view(dtype).float()
        assert float((found - should).norm() / should.norm()) < (1e-5 if is_exact else 0.02)
        near = 1e-4 if is_exact else 0.3
        torch.testing.assert_close(found, should, rtol=near, atol=near)
    else:
        assert int((pool != written).sum()) < 0.02 * int((pool != rows.pool).sum())
    assert not torch.equal(pool, rows.pool)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_models_of_each_kind(tiny: ModelBuilder, name: str, dtype: str) -> None:
    family, overrides = MODELS[name]
    decoder = _decoder(tiny(family, **overrides), dtype=dtype)
    assert decoder.step is not None
    for num_rows in (1, 3, 9, 20):
        _check(decoder, num_rows)
    _check(decoder, 12, torch.tensor([10, 2]))


@torch.inference_mode()
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_rows_of_several_tokens(tiny: ModelBuilder, name: str, dtype: str) -> None:
    """Whole prompts, chunks behind earlier tokens, and rows of one token among them."""
    family, overrides = MODELS[name]
    decoder = _decoder(tiny(family, **overrides), dtype=dtype)
    for num_rows, counts in ((1, [9]), (3, [48, 2]), (9, [17, 1, 3, 2, 30]), (20, [40] * 20)):
        _check(decoder, num_rows, counts=counts)
    _check(decoder, 3, torch.tensor([10, 2]), counts=[9, 9])


@torch.inference_mode()
@pytest.mark.parametrize("quantize", ["int8", "int4", "fp8"])
def test_quantised_models(tiny: ModelBuilder, quantize: str) -> None:
    decoder = _decoder(tiny("llama"), quantize=quantize)
    if decoder.step is None:
        assert quantize == "int8"  # which oneDNN multiplies on this processor
        pytest.skip("layers in int8 are oneDNN's here")
    for num_rows in (1, 5, 20):
        _check(decoder, num_rows)


@torch.inference_mode()
@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn])
def test_keys_and_values_in_eight_bits(tiny: ModelBuilder, kv_dtype: torch.dtype) -> None:
    decoder = _decoder(tiny("llama"))
    for num_rows in (1, 20):
        _check(decoder, num_rows, kv_dtype=kv_dtype)


@torch.inference_mode()
def test_logits_go_where_they_are_asked_for(tiny: ModelBuilder) -> None:
    decoder = _decoder(tiny("llama"))
    rows = Rows(decoder, 3)
    expected, _ = rows.run(decoder)
    batch = token_batch(*arrays(rows.rows), CPU)
    whole = torch.zeros(3, 2 * expected.shape[1])
    for out in (torch.zeros_like(expected), whole[:, : expected.shape[1]]):
        attention = PlannedAttention(rows.pool.clone(), rows.arena, batch)
        found = decoder.logits(rows.tokens, batch.positions, attention, None, out)
        assert found.data_ptr() == out.data_ptr()
        assert torch.equal(out, expected)


@torch.inference_mode()
def test_other_batches_run_layer_by_layer(tiny: ModelBuilder) -> None:
    decoder = _decoder(tiny("llama"))
    rows = Rows(decoder, 2)
    dtype, head_dim = decoder.embeddings.dtype, 2 * decoder.turns.shape[-1]

    def taken(
        batch_rows: list[tuple[int, int, int]],
        arena: ModelArena = rows.arena,
        prefixes: SharedPrefixes | None = None,
    ) -> bool:
        batch = token_batch(*arrays(batch_rows), CPU, prefixes)
        attention = PlannedAttention(rows.pool, arena, batch)
        return attention.step_rows(dtype, head_dim) is not None

    assert taken(rows.rows)
    assert taken([*rows.rows, (3, 0, 4)])
    assert taken([*rows.rows, (3, 2, 4), (4, 0, 300)])
    assert not taken([*rows.rows, (3, 400, 4)])
    rounded = replace(rows.arena, kv_dtype=torch.bfloat16)
    assert not taken([*rows.rows, (3, 0, 4)], rounded)
    long = [(2, 39, 1), (7, 47, 1)]
    assert taken(long)
    together = np.array([2, 2], dtype=np.int32), np.array([8, 8], dtype=np.int32)
    assert not taken(long, prefixes=SharedPrefixes(*together))


@torch.inference_mode()
@pytest.mark.parametrize("place", ["token", "position"])
def test_numbers_outside_of_a_tensor_are_refused(tiny: ModelBuilder, place: str) -> None:
    decoder = _decoder(tiny("llama"))
    rows = Rows(decoder, 2)
    if place == "token":
        rows.tokens[1] = len(decoder.embeddings)
    else:
        rows.rows[1] = (rows.rows[1][0], len(decoder.turns), 1)
    before = rows.pool.clone()
    with pytest.raises(IndexError):
        rows.run(decoder)
    assert torch.equal(rows.pool, before)


def test_a_product_without_a_kernel_leaves_the_layers_to_python(tiny: ModelBuilder) -> None:
    decoder = _decoder(tiny("llama"))
    assert native_step(decoder) is not None

    class Plain:
        plus = staticmethod(torch.add)

        def __call__(self, inputs: Tensor) -> Tensor:
            return inputs

    assert native_step(replace(decoder, head=Plain())) is None
    first, *others = decoder.layers
    layers = (replace(first, down=Plain()), *others)
    assert native_step(replace(decoder, layers=layers)) is None
