"""Decoders on our kernels (their twins on the CPU) compute what transformers' modules do."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.decoders import kernel_decoder as decoder_module
from muxcluster.engine.decoders.kernel_decoder import KernelDecoder
from muxcluster.engine.decoders.kernel_fusing import forward_on_gpu, kernel_decoder
from muxcluster.engine.forward.paged_forward import Forward
from muxcluster.engine.load.paged_loading import load_model
from muxcluster.engine.load.parity import NotFusible, NotTheSame, WholeAttention
from muxcluster.engine.memory.arena import Arena
from muxcluster.engine.steps import runner
from muxcluster.engine.steps.device.captures import CallAgain, Capture
from muxcluster.engine.steps.runner import UnitMemory, UnitRunner, load_forward
from tests.engine.conftest import ModelBuilder
from tests.engine.driver import Driver, ragged, unit_of
from tests.engine.tape import TapeCapture
from tests.models import model_spec
from tests.oracles import GreedyOracle

SCALED_ROPE = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}
KNOWN = (
    ("llama", {"num_key_value_heads": 6, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"tie_word_embeddings": True, "rope_parameters": SCALED_ROPE}),
    ("mistral", {}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    ("qwen3", {"head_dim": 128}),
)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "overrides"), KNOWN)
def test_logits_and_calls_are_the_models_own(
    tiny: ModelBuilder, family: str, overrides: dict[str, object], dtype: str
) -> None:
    model = load_model(model_spec(tiny(family, **overrides), "m", dtype=dtype), "cpu")
    torch.manual_seed(1)
    tokens = torch.randint(0, model.config.vocab_size, (33,))
    asked = (torch.arange(33) + 20, torch.tensor([0, 7, 32]))
    plain, own = WholeAttention(), WholeAttention()
    expected = Forward(model).logits(tokens, asked[0], plain, asked[1])
    logits = kernel_decoder(model, 64).logits(tokens, asked[0], own, asked[1])
    limit = {"float32": 1e-5, "bfloat16": 0.05}[dtype] * float(expected.abs().max())
    torch.testing.assert_close(logits, expected, rtol=0.0, atol=limit)
    assert own.calls == plain.calls
    after = Forward(model).logits(tokens, asked[0], WholeAttention(), asked[1])
    torch.testing.assert_close(after, expected, rtol=0.0, atol=limit)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_are_written_where_they_are_asked_for(tiny: ModelBuilder, dtype: str) -> None:
    model = load_model(model_spec(tiny("qwen3"), "m", dtype=dtype), "cpu")
    tokens = torch.arange(5)
    for forward in (Forward(model), kernel_decoder(model, 64)):
        expected = forward.logits(tokens, tokens, WholeAttention(), None)
        out = torch.full_like(expected, torch.nan)
        assert forward.logits(tokens, tokens, WholeAttention(), None, out=out) is out
        assert torch.equal(out, expected)


@pytest.mark.parametrize("family", ["opt", "mixtral", "gemma2"])
def test_other_families_keep_their_layers_and_one_line_says_so(
    tiny: ModelBuilder, family: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = model_spec(tiny(family), "strange")
    model = load_model(spec, "cpu")
    assert isinstance(forward_on_gpu(model, spec), Forward)
    (record,) = caplog.records
    assert record.message.startswith("strange runs unfused, on transformers' own layers: ")
    assert type(model).__name__ in record.message


def test_nothing_is_fused_or_said_where_the_unit_asks_for_that(
    tiny: ModelBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    spec = model_spec(tiny("llama"), "m")
    with caplog.at_level(logging.INFO):
        forward = forward_on_gpu(load_model(spec, "cpu"), spec, fuses=False)
    assert isinstance(forward, Forward)
    assert not caplog.records


@torch.inference_mode()
def test_a_model_that_computes_something_else_is_as_before(
    tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec = model_spec(tiny("llama"), "odd")
    model = load_model(spec, "cpu")
    tokens = torch.arange(9)
    expected = Forward(model).logits(tokens, tokens, WholeAttention(), None)
    monkeypatch.setattr(decoder_module, "silu_mul", lambda both: both.chunk(2, -1)[0])
    with pytest.raises(NotTheSame):
        kernel_decoder(model, 64)
    forward = forward_on_gpu(model, spec)
    assert isinstance(forward, Forward)
    assert torch.equal(forward.logits(tokens, tokens, WholeAttention(), None), expected)
    (record,) = caplog.records
    assert "odd runs unfused" in record.message
    assert "logits of the fused model differ" in record.message


def test_linears_of_another_class_are_not_merged(tiny: ModelBuilder) -> None:
    class Quantized(torch.nn.Linear):
        """Its weight means something else."""

    model = load_model(model_spec(tiny("llama"), "m"), "cpu")
    model.model.layers[1].mlp.up_proj.__class__ = Quantized
    with pytest.raises(NotFusible, match="Quantized.* of a layer cannot be merged"):
        kernel_decoder(model, 64)


def fused_driver(directory: Path, capture: Capture, **fields: object) -> Driver:
    """A driver of the device's steps on the CPU, the model on our kernels."""
    unit = unit_of(directory, **fields)
    (spec,) = unit.models
    decoder = kernel_decoder(load_model(spec, "cpu"), spec.max_model_len)
    memory = UnitMemory({spec.name: decoder}, Arena(unit))
    return Driver(UnitRunner(unit, memory, capture), spec, iter(range(unit.num_blocks)))


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_prompts_and_recorded_decodes_yield_hugging_faces_tokens(
    tiny: ModelBuilder, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape = TapeCapture(monkeypatch)
    driver = fused_driver(tiny(family), tape)
    oracle = GreedyOracle(tiny(family))
    for s in driver.run(ragged(driver.spec.vocab_size, 5), 8):
        oracle.check(s.tokens[: s.num_prompt], s.output)
    assert oracle.num_near_ties <= 1
    assert tape.replays > 5


def test_a_gpus_runner_fuses_unless_told_not_to(
    tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_cpu(spec: ModelSpec, _: str, *__: object, **___: object) -> object:
        return load_model(spec, "cpu")

    monkeypatch.setattr(runner, "load", on_cpu)
    unit = replace(unit_of(tiny("llama")), device="cuda:0")
    (spec,) = unit.models
    assert isinstance(load_forward(spec, unit), KernelDecoder)
    assert isinstance(load_forward(spec, replace(unit, fuses_layers=False)), Forward)


def test_the_cpus_runner_fuses_unless_told_not_to(tiny: ModelBuilder) -> None:
    unit = unit_of(tiny("llama"))
    name = unit.models[0].name
    assert not isinstance(UnitRunner(unit).memory.forwards[name], Forward)
    stock = UnitRunner(replace(unit, fuses_layers=False), capture=CallAgain())
    assert isinstance(stock.memory.forwards[name], Forward)
