"""Packed linears compute what plain ones do, and stay plain where packing does not work."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from muxcluster.engine.load import packing_cpu
from muxcluster.engine.load.packing_cpu import PackedLinear, pack_linears
from tests.conftest import ROOT


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
@pytest.mark.parametrize(
    "shape", [(70,), (1, 1, 70), (1, 35, 70), (1, 129, 70), (3, 201, 70), (0, 70)]
)
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


def test_products_are_of_few_numbers_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN keeps a kernel for every number for good."""
    seen: set[int] = set()
    apply, plus = packing_cpu._apply, packing_cpu._apply_plus

    def noted(inputs: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        seen.add(inputs.numel() // inputs.shape[-1])
        return apply(inputs, *others)

    def noted_plus(inputs: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        seen.add(len(inputs))
        return plus(inputs, *others)

    linear = nn.Linear(7, 5)
    packed = PackedLinear(linear)
    monkeypatch.setattr(packing_cpu, "_apply", noted)
    monkeypatch.setattr(packing_cpu, "_apply_plus", noted_plus)
    with torch.inference_mode():
        for num_rows in range(1, 2049):
            assert packed(torch.ones(num_rows, 7)).shape == (num_rows, 5)
        num_alone = len(seen)
        for shape in ((1, 30), (1, 67), (130,)):
            inputs, added = torch.randn(*shape, 7), torch.randn(*shape, 5)
            found = packed.plus(inputs, added)
            assert found.shape == added.shape
            torch.testing.assert_close(found, linear(inputs) + added)
    assert len(seen) == num_alone <= 128
    assert set(range(1, 33)) <= seen, "decode steps are as they are"


def test_a_process_does_not_grow_with_every_number_of_rows() -> None:
    """In a process of its own: what oneDNN keeps is the process's."""
    script = """
import torch
from muxcluster.engine.load.packing_cpu import PackedLinear

def resident_mib() -> float:
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20

torch.set_num_threads(1)
with torch.inference_mode():
    linear = PackedLinear(torch.nn.Linear(192, 192))
    linear(torch.randn(1, 192))
    before = resident_mib()
    for num_rows in range(1, 601):
        linear(torch.randn(num_rows, 192))
    print(resident_mib() - before)
"""
    command = (sys.executable, "-c", script)
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert float(done.stdout) < 150, "it was 370 MiB with a kernel for each"
