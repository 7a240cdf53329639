"""Experts of a layer are two grouped products, however many experts there are."""

import pytest
import torch
from transformers.integrations import moe

from muxcluster.engine.forward.paged_forward import Forward
from muxcluster.engine.load.paged_loading import load_model
from muxcluster.engine.load.parity import WholeAttention
from tests.engine.conftest import ModelBuilder
from tests.models import model_spec

FAMILIES = ("mixtral", "qwen2_moe", "qwen3_moe")


@pytest.mark.parametrize("family", FAMILIES)
def test_experts_run_as_grouped_products(
    tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    model = load_model(model_spec(tiny(family), "m"), "cpu")
    num_layers = sum(hasattr(module, "gate_up_proj") for module in model.modules())
    assert num_layers > 0
    calls: list[int] = []
    product = moe._grouped_mm

    def counted(rows: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        calls.append(len(rows))
        return product(rows, weight, offs)

    monkeypatch.setattr(moe, "_grouped_mm", counted)
    tokens = torch.randint(512, (19,), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(len(tokens))
    found = Forward(model).logits(tokens, positions, WholeAttention(), None)
    assert calls == [2 * len(tokens)] * (2 * num_layers)  # each token asks two experts
    model.set_experts_implementation("eager")
    expected = Forward(model).logits(tokens, positions, WholeAttention(), None)
    assert len(calls) == 2 * num_layers
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
