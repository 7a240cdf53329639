"""Weights that an owner exports and a worker maps: merged once, and no byte twice."""

from dataclasses import replace

import pytest
import torch

from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.decoders.kernel_decoder import KernelDecoder
from muxcluster.engine.forward.paged_forward import Forward
from muxcluster.engine.gpu.memory.shared import OwnedMemory, mapped_memory
from muxcluster.engine.load.paged_loading import load_model
from muxcluster.engine.load.parity import WholeAttention
from tests.engine.conftest import ModelBuilder
from tests.engine.units import spec_of


@pytest.fixture
def spec(tiny: ModelBuilder) -> UnitSpec:
    return spec_of([tiny("qwen2"), tiny("qwen3")])


def weight_bytes(owned: OwnedMemory) -> int:
    """Bytes of the files that weights lie in."""
    placed = [each for each in owned.manifest.tensors if each.name.startswith("weights/")]
    regions = {each.region for each in placed if each.region is not None}
    return sum(owned.manifest.regions[number].num_bytes for number in regions)


def test_merging_adds_no_byte_to_what_is_exported(spec: UnitSpec) -> None:
    plain = OwnedMemory(replace(spec, fuses_layers=False))
    owned = OwnedMemory(spec)
    assert {e.name for e in owned.manifest.tensors} == {e.name for e in plain.manifest.tensors}
    assert weight_bytes(owned) <= weight_bytes(plain)


@torch.inference_mode()
def test_a_worker_finds_the_merged_weights_in_the_owners_memory(spec: UnitSpec) -> None:
    owned = OwnedMemory(spec)
    forwards = mapped_memory(spec, owned.manifest).forwards
    stock = mapped_memory(replace(spec, fuses_layers=False), owned.manifest).forwards
    tokens = torch.arange(7)
    for name, decoder in forwards.items():
        assert isinstance(decoder, KernelDecoder)
        assert isinstance(stock[name], Forward)
        for layer, modules in zip(decoder.layers, decoder.model.model.layers, strict=True):
            attention, mlp = modules.self_attn, modules.mlp
            assert layer.qkv.weight.data_ptr() == attention.q_proj.weight.data_ptr()
            assert layer.gate_up.weight.data_ptr() == mlp.gate_proj.weight.data_ptr()
        expected = stock[name].logits(tokens, tokens, WholeAttention(), None)
        logits = decoder.logits(tokens, tokens, WholeAttention(), None)
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-4)
        files = {each.untyped_storage().data_ptr() for each in decoder.model.parameters()}
        assert len(files) == 1  # nothing was copied out of the owner's file


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
def test_a_worker_finds_quantised_weights(spec: UnitSpec, kind: str) -> None:
    models = tuple(replace(model, quantize=kind) for model in spec.models)
    quantised = replace(spec, models=models)
    owned = OwnedMemory(quantised)
    assert weight_bytes(owned) < 0.7 * weight_bytes(OwnedMemory(spec))
    tokens = torch.arange(7)
    for model in models:
        forward = mapped_memory(quantised, owned.manifest).forwards[model.name]
        expected = Forward(load_model(model, "cpu")).logits(tokens, tokens, WholeAttention(), None)
        found = forward.logits(tokens, tokens, WholeAttention(), None)
        assert torch.equal(found, expected)
