"""Fused decoders compute what transformers' own modules do, or are refused."""

from pathlib import Path

import pytest
import torch

from muxcluster.engine.decoders import torch_fusing as fusing
from muxcluster.engine.decoders.torch_fusing import fuse, is_fusible
from muxcluster.engine.forward.paged_forward import Forward
from muxcluster.engine.load.paged_loading import load_model
from muxcluster.engine.load.parity import NotTheSame, WholeAttention
from muxcluster.engine.steps import runner
from muxcluster.engine.steps.runner import UnitRunner
from tests.engine.conftest import ModelBuilder
from tests.engine.driver import drivers, ragged, unit_of
from tests.models import model_spec

SAME = (
    ("llama", {"num_key_value_heads": 6, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"tie_word_embeddings": True}),
    ("mistral", {}),
    ("qwen2", {}),
    ("qwen3", {"head_dim": 128}),
)


def loaded(directory: Path, **fields: object) -> torch.nn.Module:
    return load_model(model_spec(directory, "m", **fields), "cpu")


@torch.inference_mode()
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "overrides"), SAME)
def test_logits_and_calls_are_the_models_own(
    tiny: ModelBuilder, family: str, overrides: dict[str, object], dtype: str
) -> None:
    model = loaded(tiny(family, **overrides), dtype=dtype)
    if not is_fusible(model):
        pytest.skip(f"oneDNN does not pack {dtype} here")
    torch.manual_seed(1)
    tokens = torch.randint(0, model.config.vocab_size, (33,))
    positions, wanted = torch.arange(33) + 20, torch.tensor([0, 7, 32])
    plain, own = WholeAttention(), WholeAttention()
    expected = Forward(model).logits(tokens, positions, plain, wanted)
    fused = fuse(model, 64)
    logits = fused.logits(tokens, positions, own, wanted)
    limit = {"float32": 1e-4, "bfloat16": 0.1}[dtype] * float(expected.abs().max())
    torch.testing.assert_close(logits, expected, rtol=0.0, atol=limit)
    assert own.calls == plain.calls


@pytest.mark.parametrize("family", ["opt", "mixtral", "gemma2"])
def test_other_families_stay_as_they_are(tiny: ModelBuilder, family: str) -> None:
    assert not is_fusible(loaded(tiny(family)))


def test_another_activation_or_rope_is_not_fused(tiny: ModelBuilder) -> None:
    model = loaded(tiny("llama"))
    assert is_fusible(model)
    model.config.hidden_act = "gelu"
    assert not is_fusible(model)
    model.config.hidden_act = "silu"
    model.config.rope_parameters = {**model.config.rope_parameters, "rope_type": "dynamic"}
    assert not is_fusible(model)


def test_a_model_that_computes_something_else_is_refused_and_runs_unfused(
    tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = unit_of(tiny("llama"))
    prompts = ragged(unit.models[0].vocab_size, 3)
    (driver,) = drivers(unit)
    assert driver.runner._models[unit.models[0].name].is_fused
    expected = [s.output for s in driver.run(prompts, 5)]

    in_pairs = fusing._in_pairs
    monkeypatch.setattr(fusing, "_in_pairs", lambda linear, heads: linear)
    with pytest.raises(NotTheSame):
        fuse(loaded(tiny("llama")), 64)
    unfused = UnitRunner(unit)
    assert not unfused._models[unit.models[0].name].is_fused
    monkeypatch.setattr(fusing, "_in_pairs", in_pairs)
    monkeypatch.setattr(runner, "is_fusible", lambda model: False)
    (driver,) = drivers(unit)
    assert [s.output for s in driver.run(prompts, 5)] == expected
