"""Models whose modules run on our kernels (their twins on the CPU) compute what they did."""

import pytest
import torch

from muxcluster.engine import swapping
from muxcluster.engine.arena import Arena
from muxcluster.engine.forward import Forward
from muxcluster.engine.loading import load_model
from muxcluster.engine.runner import UnitMemory, UnitRunner
from muxcluster.engine.sameness import NotTheSame, WholeAttention
from muxcluster.engine.swapping import swap_modules
from tests.engine_model.conftest import ModelBuilder
from tests.engine_model.driver import Driver, ragged, unit_of
from tests.engine_model.tape import TapeCapture
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
    assert swap_modules(model, 64)
    logits = Forward(model).logits(tokens, asked[0], own, asked[1])
    limit = {"float32": 1e-5, "bfloat16": 0.05}[dtype] * float(expected.abs().max())
    torch.testing.assert_close(logits, expected, rtol=0.0, atol=limit)
    assert own.calls == plain.calls


@pytest.mark.parametrize("family", ["opt", "mixtral", "gemma2"])
def test_other_families_stay_as_they_are(tiny: ModelBuilder, family: str) -> None:
    model = load_model(model_spec(tiny(family), "m"), "cpu")
    assert not swap_modules(model, 64)
    assert all("forward" not in vars(module) for module in model.modules())


@torch.inference_mode()
def test_a_model_that_computes_something_else_is_as_before(
    tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(model_spec(tiny("llama"), "m"), "cpu")
    tokens = torch.arange(9)
    expected = Forward(model).logits(tokens, tokens, WholeAttention(), None)
    monkeypatch.setattr(swapping, "silu_mul", lambda gate, up: gate * up)
    with pytest.raises(NotTheSame):
        swap_modules(model, 64)
    assert torch.equal(Forward(model).logits(tokens, tokens, WholeAttention(), None), expected)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_prompts_and_recorded_decodes_yield_hugging_faces_tokens(
    tiny: ModelBuilder, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = unit_of(tiny(family))
    (spec,) = unit.models
    model = load_model(spec, "cpu")
    assert swap_modules(model, spec.max_model_len)
    memory = UnitMemory({spec.name: Forward(model)}, Arena(unit))
    tape = TapeCapture(monkeypatch)
    driver = Driver(UnitRunner(unit, memory, tape), spec, iter(range(unit.num_blocks)))
    oracle = GreedyOracle(tiny(family))
    for s in driver.run(ragged(spec.vocab_size, 5), 8):
        oracle.check(s.tokens[: s.num_prompt], s.output)
    assert oracle.num_near_ties <= 1
    assert tape.replays > 5
