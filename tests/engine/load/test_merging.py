"""Merged products: the same numbers, the same names, no byte twice."""

import weakref
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from muxcluster.engine.load import merging
from muxcluster.engine.load.merging import merge_products, merged, same_input
from muxcluster.engine.load.paged_loading import load_model
from tests.engine.conftest import ModelBuilder
from tests.models import model_spec

KINDS = (
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("qwen2", {}),
    ("qwen3", {"head_dim": 128}),
)


def stored_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind them, each counted once."""
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize(("family", "overrides"), KINDS)
def test_parts_keep_names_and_values_and_no_byte_is_stored_twice(
    tiny: ModelBuilder, family: str, overrides: dict[str, object]
) -> None:
    model = load_model(model_spec(tiny(family, **overrides), "m"), "cpu")
    before = {name: each.clone() for name, each in model.state_dict().items()}
    num_bytes = sum(each.nbytes for each in model.parameters())
    merge_products(model, "cpu")
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], each) for name, each in before.items())
    products = [merged(linears) for layer in model.model.layers for linears in same_input(layer)]
    assert None not in products
    own = [x for each in products for x in (each.weight, each.bias) if x is not None]
    assert stored_bytes([*model.parameters(), *own]) == num_bytes


@pytest.mark.parametrize(("family", "overrides"), KINDS)
def test_the_product_is_its_parts_side_by_side(
    tiny: ModelBuilder, family: str, overrides: dict[str, object]
) -> None:
    model = load_model(model_spec(tiny(family, **overrides), "m"), "cpu")
    merge_products(model, "cpu")
    for layer in model.model.layers:
        for linears in same_input(layer):
            inputs = torch.randn(3, linears[0].in_features)
            expected = torch.cat([each(inputs) for each in linears], dim=-1)
            product = merged(linears)
            assert product is not None
            torch.testing.assert_close(product(inputs), expected)


def test_merging_again_moves_nothing(tiny: ModelBuilder) -> None:
    model = load_model(model_spec(tiny("llama"), "m"), "cpu")
    merge_products(model, "cpu")
    places = [each.data_ptr() for each in model.parameters()]
    merge_products(model, "cpu")
    assert [each.data_ptr() for each in model.parameters()] == places


def test_a_weight_that_changes_changes_the_product(tiny: ModelBuilder) -> None:
    model = load_model(model_spec(tiny("llama"), "m"), "cpu")
    merge_products(model, "cpu")
    linears = same_input(model.model.layers[0])[0]
    product = merged(linears)
    assert product is not None
    with torch.no_grad():
        linears[1].weight.fill_(7.0)
    first, second = linears[0].out_features, linears[1].out_features
    assert torch.all(product.weight[first : first + second] == 7.0)


def test_at_most_one_group_of_linears_is_there_twice(
    tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(model_spec(tiny("llama"), "m"), "cpu")
    whole = sum(each.nbytes for each in model.parameters())
    largest = max(
        sum(each.weight.nbytes for each in linears)
        for layer in model.model.layers
        for linears in same_input(layer)
    )
    parts = [(weakref.ref(each), each.nbytes) for each in model.parameters()]
    made, peaks = [], []
    empty = torch.empty

    def counted(*args: object, **kwargs: object) -> Tensor:
        tensor: Tensor = empty(*args, **kwargs)
        made.append(tensor.nbytes)
        peaks.append(sum(size for part, size in parts if part() is not None) + sum(made))
        return tensor

    monkeypatch.setattr(torch, "empty", counted)
    merge_products(model, "cpu")
    assert len(made) == 2 * model.config.num_hidden_layers
    assert whole < max(peaks) <= whole + largest


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
def test_linears_that_differ_stay_as_they_are(dtype: torch.dtype, bias: bool) -> None:
    first, other = nn.Linear(8, 4, bias=True), nn.Linear(8, 4, bias=bias).to(dtype)
    can = dtype == torch.float32 and bias
    assert merging._can_merge((first, other)) == can
    assert merged((first, other)) is None  # not in merged storage yet
