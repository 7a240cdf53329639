"""Weights quantised when they are loaded: bounded errors, and what is served is what is held."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM

from muxcluster.config.facts import quantised as with_quantised
from muxcluster.config.facts import read_facts
from muxcluster.core.errors import LoadError
from muxcluster.engine.forward.paged_forward import Forward
from muxcluster.engine.load.backends import load
from muxcluster.engine.load.dense_loading import load_dense
from muxcluster.engine.load.packing_cpu import pack_linears
from muxcluster.engine.load.paged_loading import load_model
from muxcluster.engine.load.parity import WholeAttention
from muxcluster.engine.quantised import cpu_products, rounding
from muxcluster.engine.quantised.cpu_products import Int4Linear, Int8Linear, fast_linear
from muxcluster.engine.quantised.linear import FastLinear, QuantisedLinear
from muxcluster.engine.quantised.panel_linear import can_read, panel_linear
from muxcluster.engine.quantised.rounding import quantised
from muxcluster.engine.quantised.weight import CannotCut, joined
from muxcluster.placement.shapes.config_values import ShapeError
from muxcluster.placement.shapes.weight_format import QUANTIZE, WeightFormat
from tests.engine.conftest import ModelBuilder
from tests.engine.driver import drivers, ragged, unit_of
from tests.models import model_spec
from tests.oracles import GreedyOracle


def _random(num_out: int, num_in: int, seed: int = 0) -> Tensor:
    return torch.randn(num_out, num_in, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", QUANTIZE)
def test_each_element_is_the_nearest(kind: str) -> None:
    weight = _random(48, 96) * torch.linspace(0.01, 10, 48).unsqueeze(1)
    weight[3] = 0
    found = quantised(weight, QUANTIZE[kind])
    dense = found.dense(torch.float32)
    step = found.scales.repeat_interleave(found.group, 1)
    if kind == "fp8":  # three bits after the leading one
        bound = torch.maximum(weight.abs() * 2**-4, step * 2**-10)
    else:
        bound = step / 2
    assert ((dense - weight).abs() <= bound * 1.001).all()
    assert (dense[3] == 0).all()


@pytest.mark.parametrize("kind", QUANTIZE)
def test_large_weights_are_rounded_piece_by_piece(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = _random(50, 128)
    whole = quantised(weight, QUANTIZE[kind])
    monkeypatch.setattr(rounding, "_MOST_ELEMENTS", 7 * 128)
    for found, expected in zip(
        quantised(weight, QUANTIZE[kind]).tensors(), whole.tensors(), strict=True
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", QUANTIZE)
def test_parts_are_of_the_whole(kind: str) -> None:
    whole = quantised(
        _random(64, 256), WeightFormat("int4", 32) if kind == "int4" else QUANTIZE[kind]
    )
    dense = whole.dense(torch.float32)
    rows = whole.part(0, [(8, 16), (40, 56)])
    assert torch.equal(rows.dense(torch.float32), torch.cat([dense[8:16], dense[40:56]]))
    columns = whole.part(1, [(64, 192)])
    assert torch.equal(columns.dense(torch.float32), dense[:, 64:192])
    both = joined([whole.part(0, [(0, 32)]), whole.part(0, [(32, 64)])])
    assert torch.equal(both.dense(torch.float32), dense)
    if kind == "int4":
        with pytest.raises(CannotCut, match="groups of 32"):
            whole.part(1, [(16, 64)])


FAST = (("int8", torch.float32, Int8Linear), ("int4", torch.bfloat16, Int4Linear))


@pytest.mark.parametrize(("kind", "dtype", "fast"), FAST)
def test_torchs_products_are_those_of_the_plain_layer(
    kind: str, dtype: torch.dtype, fast: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_products, "can_read", lambda dtype: False)
    plain, inputs = _plain(kind, dtype)
    found = fast_linear(plain)
    if found is plain:
        pytest.skip(f"this machine has no product of {kind}")
    assert isinstance(found, fast)
    _check_like(found, plain, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", QUANTIZE)
@pytest.mark.parametrize("has_order", [False, True])
def test_products_of_panels_are_those_of_the_plain_layer(
    kind: str, dtype: torch.dtype, has_order: bool
) -> None:
    plain, inputs = _plain(kind, dtype)
    if not can_read(plain.dtype):
        pytest.skip("there is no C++ compiler here")
    if has_order:
        plain.order = torch.randperm(128, generator=torch.Generator().manual_seed(2))
    _check_like(panel_linear(plain), plain, inputs)


def _plain(kind: str, dtype: torch.dtype) -> tuple[QuantisedLinear, Tensor]:
    inputs = _random(7, 128, seed=1).view(1, 7, 128).to(dtype)
    bias = nn.Parameter(torch.randn(48).to(dtype), requires_grad=False)
    form = QUANTIZE[kind]
    weight = quantised(_random(48, 128), form)
    return QuantisedLinear(weight, bias, dtype, rounds_inputs=form.rounds_inputs), inputs


def _check_like(found: FastLinear, plain: QuantisedLinear, inputs: Tensor) -> None:
    tolerance = 1e-4 if plain.dtype == torch.float32 else 0.02
    expected = plain(inputs)
    scale = float(expected.abs().max())
    assert found(inputs).dtype == expected.dtype
    assert float((found(inputs) - expected).abs().max()) < tolerance * scale
    sums = found.plus(inputs, inputs[..., :48])
    assert float((sums - expected - inputs[..., :48]).abs().max()) < tolerance * scale


@pytest.mark.parametrize("kind", ["int4", "fp8"])
def test_served_tokens_are_those_of_the_weights_that_are_held(
    tiny: ModelBuilder, tmp_path: Path, kind: str
) -> None:
    source = tiny("llama")
    model = load_model(model_spec(source, "m", quantize=kind), "cpu")
    dense = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    num_rounded = 0
    for name, each in model.named_modules():
        if isinstance(each, QuantisedLinear):
            dense.get_submodule(name).weight.data = each.weight
            num_rounded += 1
    assert num_rounded == 7 * dense.config.num_hidden_layers + 1
    dense.save_pretrained(tmp_path / "dense")
    unit = unit_of(source, quantize=kind)
    (driver,) = drivers(unit)
    oracle = GreedyOracle(tmp_path / "dense")
    for sequence in driver.run(ragged(unit.models[0].vocab_size, 4), 16):
        oracle.check(sequence.tokens[: sequence.num_prompt], sequence.output)
    assert oracle.num_near_ties <= 1


def test_rounded_inputs_are_those_of_a_model_that_rounds_them(tiny: ModelBuilder) -> None:
    """int8: logits against transformers' model whose linears round as the formula says."""
    source = tiny("llama")
    model = load_model(model_spec(source, "m", quantize="int8"), "cpu")
    expected = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    tokens = torch.arange(1, 40).unsqueeze(0)

    def rounding_linear(weight: Tensor, *, rounds_inputs: bool) -> nn.Module:
        class Rounding(nn.Module):
            def forward(self, inputs: Tensor) -> Tensor:
                scale = inputs.double().abs().amax(-1, keepdim=True) / 127
                near = torch.round(inputs.double() / scale) * scale
                return linear(near if rounds_inputs else inputs.double(), weight.double()).float()

        return Rounding()

    plain = expected(tokens).logits[0]
    for name, each in list(model.named_modules()):
        if isinstance(each, QuantisedLinear):
            layer = rounding_linear(each.weight, rounds_inputs=name != "lm_head")
            expected.set_submodule(name, layer)
    with torch.inference_mode():
        whole = expected(tokens).logits[0]
        pack_linears(model)
        positions = torch.arange(tokens.shape[1])
        found = Forward(model).logits(tokens[0], positions, WholeAttention(), None)
    # A rounding that falls the other way moves the logits after it a little.
    error = (found - whole).norm() / (plain - whole).norm()
    assert error < 0.5
    assert (found.argmax(-1) == whole.argmax(-1)).float().mean() > 0.9


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("kind", QUANTIZE)
def test_the_plan_counts_the_bytes_that_are_held(
    tiny: ModelBuilder, kind: str, is_tied: bool
) -> None:
    # groups of 128 divide its inputs, as those of real models
    source = tiny("qwen2", intermediate_size=384, tie_word_embeddings=is_tied)
    model = load_model(model_spec(source, "m", quantize=kind), "cpu")
    held = sum(
        each.quantised.nbytes for each in model.modules() if isinstance(each, QuantisedLinear)
    )
    held += sum(each.nbytes for each in model.parameters())
    facts = with_quantised(read_facts(source), kind)
    assert held == pytest.approx(facts.shape.weight_bytes(4), rel=0.02)
    assert held < 0.7 * read_facts(source).shape.weight_bytes(4)
    head = model.get_output_embeddings()
    if is_tied:
        assert head.weight is model.get_input_embeddings().weight
    else:
        assert head.values.dtype == (torch.float8_e4m3fn if kind == "fp8" else torch.int8)
        assert not head.rounds_inputs


def test_the_dense_backend_refuses_them(tiny: ModelBuilder) -> None:
    source = tiny("bloom")
    with pytest.raises(
        ShapeError, match="the backend that this type of model needs runs no such weights"
    ):
        with_quantised(read_facts(source), "int8")
    spec = model_spec(source, "m", quantize="int8")
    with pytest.raises(LoadError, match="config.json: .*cannot be served from a paged cache"):
        load(spec, "cpu")
    with pytest.raises(LoadError, match="config.json: the dense backend runs no quantised weights"):
        load_dense(spec, "cpu")
