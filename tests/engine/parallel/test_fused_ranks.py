"""Ranks on our kernels with merged products compute what the whole model does."""

import logging
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from muxcluster.engine.decoders import kernel_decoder as decoder_module
from muxcluster.engine.decoders.kernel_decoder import KernelDecoder
from muxcluster.engine.decoders.kernel_fusing import forward_on_gpu, kernel_decoder, packed_decoder
from muxcluster.engine.forward.paged_forward import Forward
from muxcluster.engine.load.division.group import RankGroup
from muxcluster.engine.load.division.layers import SummedLinear
from muxcluster.engine.load.paged_loading import load_model
from muxcluster.engine.load.parity import WholeAttention
from muxcluster.engine.memory.arena import Arena
from muxcluster.engine.quantised.linear import FastLinear
from muxcluster.engine.steps.runner import UnitMemory, UnitRunner
from tests.engine.driver import Driver, Running, ragged, unit_of
from tests.engine.parallel.conftest import ModelBuilder
from tests.engine.parallel.ranks import on_ranks, over_ranks, rank_model
from tests.engine.parallel.test_recorded_steps import TapedGroup
from tests.engine.steps.test_decode_graphs import check
from tests.engine.tape import TapeCapture
from tests.models import model_spec

CASES = (
    ("llama-biased", "llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama-ragged", "llama", {"vocab_size": 515, "tie_word_embeddings": True}),
    ("qwen2", "qwen2", {}),
    ("qwen3", "qwen3", {"num_key_value_heads": 2}),
    ("mistral", "mistral", {}),  # one KV head, on both ranks
)


@torch.inference_mode()
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("make", [kernel_decoder, packed_decoder])
@pytest.mark.parametrize(("name", "family", "fields"), CASES)
def test_logits_are_the_whole_models(
    tiny: ModelBuilder, name: str, family: str, fields: dict, make: object, size: int
) -> None:
    spec = model_spec(tiny(name, family, **fields), "m")
    whole = load_model(spec, "cpu")
    torch.manual_seed(2)
    tokens, wanted = torch.randint(0, spec.vocab_size, (19,)), torch.tensor([3, 18])
    expected = Forward(whole).logits(tokens, torch.arange(19), WholeAttention(), wanted)

    def logits(group: RankGroup) -> Tensor:
        model = load_model(rank_model(spec, size), "cpu", group)
        held = sum(each.nbytes for each in model.parameters())
        decoder = make(model, 64)
        assert isinstance(decoder.layers[0].output, SummedLinear)
        if make is kernel_decoder:
            stored = {
                e.untyped_storage().data_ptr(): e.untyped_storage() for e in model.parameters()
            }
            assert sum(each.nbytes() for each in stored.values()) == held
        else:
            assert isinstance(decoder.layers[0].qkv, FastLinear)
        return decoder.logits(tokens, torch.arange(19), WholeAttention(), wanted)

    ranks = on_ranks(size, logits)
    limit = 1e-4 * float(expected.abs().max())
    torch.testing.assert_close(ranks[0], expected, rtol=0.0, atol=limit)
    assert all(torch.equal(each, ranks[0]) for each in ranks)


@pytest.mark.parametrize(("name", "family", "fields"), CASES)
def test_prompts_and_recorded_decodes_yield_hugging_faces_tokens(
    tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch, name: str, family: str, fields: dict
) -> None:
    directory = tiny(name, family, **fields)
    tape = TapeCapture(monkeypatch)
    unit = over_ranks(unit_of(directory))
    (spec,) = unit.models

    def work(group: RankGroup) -> list[Running]:
        forward = forward_on_gpu(load_model(spec, "cpu", TapedGroup(group, tape)), spec)
        assert isinstance(forward, KernelDecoder)
        memory = UnitMemory({spec.name: forward}, Arena(unit))
        driver = Driver(UnitRunner(unit, memory, tape), spec, iter(range(unit.num_blocks)))
        return driver.run(ragged(spec.vocab_size, 5), 8)

    ranks = on_ranks(2, work)
    check(directory, ranks[0])
    assert [s.tokens for s in ranks[1]] == [s.tokens for s in ranks[0]]
    assert tape.replays > 10


def test_ranks_that_differ_from_the_model_run_it_unfused(
    tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On both kinds of devices, all ranks alike; on the CPU the weights are read again."""
    directory = tiny("qwen2", "qwen2")
    unit = over_ranks(replace(unit_of(directory), num_blocks=200))
    (spec,) = unit.models
    monkeypatch.setattr(decoder_module, "silu_mul", lambda both: both.chunk(2, -1)[0])

    def kinds(group: RankGroup) -> tuple[type, type]:
        on_gpu = forward_on_gpu(load_model(spec, "cpu", group), spec)
        runner = UnitRunner(unit, group=group)
        return type(on_gpu), type(runner.memory.forwards[spec.name])

    with caplog.at_level(logging.WARNING):
        assert on_ranks(2, kinds) == [(Forward, Forward)] * 2
    assert len([each for each in caplog.records if "unfused" in each.message]) == 4
