"""Quantised checkpoints give Hugging Face's tokens for the weights that they stand for."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from muxcluster.config.facts import read_facts
from muxcluster.engine.load.paged_loading import load_model
from muxcluster.engine.quantised.linear import QuantisedLinear
from tests.engine.conftest import ModelBuilder
from tests.engine.driver import drivers, ragged, unit_of
from tests.engine.quantised.checkpoints import (
    EXACT,
    METHODS,
    WITH_HEAD,
    Checkpoint,
    is_quantised,
    write,
)
from tests.models import model_spec
from tests.oracles import GreedyOracle

NUM_TOKENS = 16

Maker = Callable[[str, str], Checkpoint]


@pytest.fixture(scope="module")
def checkpoint(tiny: ModelBuilder, tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """(family, method) -> the tiny model of the family quantised so; made once."""
    made: dict[tuple[str, str], Checkpoint] = {}

    def of(family: str, method: str) -> Checkpoint:
        if (family, method) not in made:
            folder = tmp_path_factory.mktemp(f"{family}-{method}")
            made[family, method] = write(tiny(family), folder, method)
        return made[family, method]

    return of


@pytest.mark.parametrize("method", METHODS)
def test_weights_are_those_that_the_format_means(checkpoint: Maker, method: str) -> None:
    found = checkpoint("llama", method)
    model = load_model(model_spec(found.quantised, "m"), "cpu")
    expected = load_file(found.dense / "model.safetensors")
    seen = {name: each for name, each in model.named_modules() if isinstance(each, QuantisedLinear)}
    assert set(seen) == {
        name.removesuffix(".weight")
        for name in expected
        if is_quantised(name) and expected[name].ndim == 2
    } | ({"lm_head"} if method in WITH_HEAD else set())
    for name, linear in seen.items():
        torch.testing.assert_close(linear.weight, expected[f"{name}.weight"], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("method", EXACT)
def test_tokens(checkpoint: Maker, method: str) -> None:
    _check_tokens(checkpoint("llama", method))


@pytest.mark.parametrize(
    ("family", "method"),
    [("qwen2", "awq"), ("opt", "packed-4-zeros"), ("qwen3", "fp8-blocks"), ("gemma2", "gptq-8")],
)
def test_tokens_of_other_families(checkpoint: Maker, family: str, method: str) -> None:
    _check_tokens(checkpoint(family, method))


def _check_tokens(found: Checkpoint) -> None:
    unit = unit_of(found.quantised)
    (driver,) = drivers(unit)
    sequences = driver.run(ragged(unit.models[0].vocab_size, 5), NUM_TOKENS)
    oracle = GreedyOracle(found.dense)
    for each in sequences:
        oracle.check(each.tokens[: each.num_prompt], each.output)
    assert oracle.num_near_ties <= 1


def test_the_linears_take_the_bytes_that_the_plan_counts(checkpoint: Maker) -> None:
    for method in METHODS:
        found = checkpoint("llama", method)
        spec = model_spec(found.quantised, "m")
        model = load_model(spec, "cpu")
        stored = sum(
            each.quantised.nbytes for each in model.modules() if isinstance(each, QuantisedLinear)
        )
        dense = sum(each.nbytes for each in model.parameters())
        planned = read_facts(Path(spec.path)).shape.weight_bytes(4)
        # columns in an order of their own are numbered: of a model this small two hundredths
        rel = 0.04 if method == "gptq-order" else 0.01
        if method in (*WITH_HEAD, "fp8-auto"):  # its config.json does not say that it has one scale
            assert stored + dense < planned
        else:
            assert stored + dense == pytest.approx(planned, rel=rel), method
