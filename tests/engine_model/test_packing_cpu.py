"""Packed linears compute what plain ones do, and stay plain where packing does not work."""

import pytest
import torch
from torch import nn

from muxcluster.engine import packing_cpu
from muxcluster.engine.packing_cpu import PackedLinear, pack_linears


class Net(nn.Module):
    """Two linears, one of them used under two names, and one of a kind of its own."""

    class Special(nn.Linear):
        pass

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"one": nn.Linear(70, 33), "two": nn.Linear(33, 33, bias=False)})
        self.again = self.inner["two"]
        self.special = Net.Special(33, 5)
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.special(self.again(torch.relu(self.inner["two"](self.inner["one"](x)))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(70,), (1, 1, 70), (1, 129, 70), (0, 70)])
def test_packed_equals_plain(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    net = Net(dtype)
    inputs = torch.randn(shape).to(dtype)
    with torch.inference_mode():
        plain = net(inputs)
        pack_linears(net)
        torch.testing.assert_close(net(inputs), plain)


def test_fp32_is_packed_once_and_the_plain_weight_is_gone() -> None:
    net = Net(torch.float32)
    assert pack_linears(net) == 2
    assert isinstance(net.again, PackedLinear)
    assert net.again is net.inner["two"]
    assert type(net.special) is Net.Special
    assert [name for name, _ in net.named_parameters()] == ["special.weight", "special.bias"]
    assert pack_linears(net) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_that_a_model_asks_for_is_the_plain_one(dtype: torch.dtype) -> None:
    net = Net(dtype)
    weight = net.again.weight.detach().clone()
    pack_linears(net)
    assert torch.equal(net.again.weight, weight)
    assert "again.weight" not in net.state_dict()


def test_a_torch_that_packs_wrongly_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(inputs: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*inputs.shape[:-1], 53)

    monkeypatch.setattr(packing_cpu, "_apply", wrong)
    packing_cpu.packs_correctly.cache_clear()
    try:
        net = Net(torch.float32)
        assert pack_linears(net) == 0
        assert type(net.again) is nn.Linear
    finally:
        packing_cpu.packs_correctly.cache_clear()
