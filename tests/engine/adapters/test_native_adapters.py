"""Decode steps with adapters in one call of the C++ kernels give the logits of many calls."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from muxcluster.core.unitspec import AdapterSpec
from muxcluster.engine.adapters.forward import AdaptedForward
from muxcluster.engine.adapters.tokens import NO_ADAPTER, AdapterTokens
from muxcluster.engine.decoders.torch_decoder import FusedDecoder
from muxcluster.engine.steps.runner import load_forward
from tests.adapters import write_adapter
from tests.engine.conftest import ModelBuilder
from tests.engine.decoders.decode_rows import Rows
from tests.engine.units import spec_of
from tests.kernels.native.switch import two_threads

__all__ = ["two_threads"]

CPU = torch.device("cpu")


def adapted(tiny: ModelBuilder, tmp_path: Path, family: str, **fields: object) -> AdaptedForward:
    """A model with three adapters, of different ranks; one leaves most linears as they are."""
    base = tiny(family)
    paths = [
        write_adapter(tmp_path / "one", base, rank=3, seed=1),
        write_adapter(tmp_path / "two", base, rank=8, seed=2),
        write_adapter(tmp_path / "few", base, rank=2, seed=3, targets=("k_proj", "down_proj")),
    ]
    unit = spec_of([base])
    spec = replace(
        unit.models[0],
        adapters=tuple(AdapterSpec(each.name, str(each)) for each in paths),
        **fields,
    )
    forward = load_forward(spec, replace(unit, models=(spec,)))
    assert isinstance(forward, AdaptedForward)
    return forward


def by_layers(forward: AdaptedForward) -> AdaptedForward:
    assert isinstance(forward.adapted, FusedDecoder)
    assert forward.adapted.step is not None
    return replace(forward, adapted=replace(forward.adapted, step=None))


def tokens_of(adapters: list[int]) -> AdapterTokens:
    return AdapterTokens.of(np.array(adapters, dtype=np.int32), CPU)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("llama", {}),
        ("llama", {"dtype": "bfloat16"}),
        ("qwen3", {}),
        ("qwen2", {"quantize": "int4"}),
        ("llama", {"quantize": "int8"}),  # rounds inputs, which adapters get as they are
    ],
    ids=["fp32", "bf16", "head norms", "biases and int4", "int8"],
)
def test_rows_of_several_and_of_none(
    tiny: ModelBuilder, tmp_path: Path, family: str, fields: dict[str, object]
) -> None:
    forward = adapted(tiny, tmp_path, family, **fields)
    assert isinstance(forward.plain, FusedDecoder)
    if forward.plain.step is None and fields == {"quantize": "int8"}:
        pytest.skip("layers in int8 are oneDNN's here")
    one_by_one = by_layers(forward)
    is_exact = not fields.keys() & {"dtype", "quantize"}
    rng = np.random.default_rng(1)
    for num_rows in (1, 5, 20):
        rows = Rows(forward.plain, num_rows)
        adapters = rng.integers(NO_ADAPTER, 3, num_rows).tolist()
        adapters[0] = 1
        tokens = tokens_of(adapters)
        logits, pool = rows.run(forward.of(tokens))
        expected, written = rows.run(one_by_one.of(tokens))
        plain, _ = rows.run(forward.plain)
        size, limit = float(expected.abs().max()), 1e-5 if is_exact else 0.03
        torch.testing.assert_close(logits, expected, rtol=0, atol=limit * size)
        near = 1e-4 if is_exact else limit
        kind = forward.plain.embeddings.dtype
        torch.testing.assert_close(pool.view(kind), written.view(kind), rtol=near, atol=near)
        for row, adapter in enumerate(adapters):
            is_plain = torch.allclose(logits[row], plain[row], rtol=0, atol=1e-4 * size)
            assert is_plain == (adapter == NO_ADAPTER)


@torch.inference_mode()
def test_a_number_beyond_all_adapters_is_refused(tiny: ModelBuilder, tmp_path: Path) -> None:
    forward = adapted(tiny, tmp_path, "llama")
    assert isinstance(forward.plain, FusedDecoder)
    rows = Rows(forward.plain, 2)
    before = rows.pool.clone()
    with pytest.raises(IndexError):
        rows.run(forward.of(tokens_of([NO_ADAPTER, 3])))
    assert torch.equal(rows.pool, before)


@pytest.mark.parametrize("num_rows", [1, 4, 7])
def test_adapters_of_tokens_come_back(num_rows: int) -> None:
    adapters = np.random.default_rng(num_rows).integers(NO_ADAPTER, 2, num_rows).astype(np.int32)
    tokens = AdapterTokens.of(adapters, CPU)
    assert tokens.adapters().tolist() == adapters.tolist()
    # buffers of more rows, as of a step that is sent ahead
    wide = AdapterTokens(
        torch.cat((tokens.tokens, torch.zeros(3, dtype=torch.int64))),
        torch.cat((tokens.tiles, torch.zeros((2, 3), dtype=torch.int32))),
        num_rows + 2,
    )
    assert wide.adapters().tolist() == [*adapters.tolist(), NO_ADAPTER, NO_ADAPTER]
