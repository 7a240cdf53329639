"""Packed linears compute what plain ones do, and stay plain where packing does not work."""

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest
import torch
from torch import nn

from muxcluster.engine.load import packing_cpu
from muxcluster.engine.load.packing_cpu import PackedLinear, pack_linears
from muxcluster.engine.processes.owner_link import ONE_THREAD
from muxcluster.engine.quantised.linear import FastLinear
from tests.conftest import ROOT
from tests.kernels.native.switch import without_native


@pytest.fixture(params=["C++", "oneDNN"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In our layout, and in oneDNN's as without a compiler."""
    without_native(request.param == "oneDNN", monkeypatch)


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
@pytest.mark.usefixtures("by")
def test_packed_equals_plain(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    net = Net(dtype)
    inputs = torch.randn(shape).to(dtype)
    with torch.inference_mode():
        plain = net(inputs)
        pack_linears(net)
        torch.testing.assert_close(net(inputs), plain)


@pytest.mark.usefixtures("by")
def test_fp32_is_packed_once_and_the_plain_weight_is_gone() -> None:
    net = Net(torch.float32)
    assert pack_linears(net) == 2
    assert isinstance(net.again, FastLinear)
    assert net.again is net.inner["two"]
    assert type(net.special) is Net.Special
    assert [name for name, _ in net.named_parameters()] == ["special.weight", "special.bias"]
    assert pack_linears(net) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("by")
def test_a_weight_that_a_model_asks_for_is_the_plain_one(dtype: torch.dtype) -> None:
    if not packing_cpu.can_pack(dtype):
        pytest.skip(f"linears in {dtype} stay plain on this processor")
    net = Net(dtype)
    weight = net.again.weight.detach().clone()
    pack_linears(net)
    assert torch.equal(net.again.weight, weight)
    assert "again.weight" not in net.state_dict()


def test_a_torch_that_packs_wrongly_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(inputs: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*inputs.shape[:-1], 53)

    without_native(True, monkeypatch)
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


GROWTH = """
import sys
import torch
from muxcluster.engine.load.packing_cpu import PackedLinear

def resident_mib() -> float:
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20

num_linears, most_rows = map(int, sys.argv[1:])
torch.set_num_threads(1)
with torch.inference_mode():
    linears = [PackedLinear(torch.nn.Linear(192, 192 + 8 * i)) for i in range(num_linears)]
    for linear in linears:
        linear(torch.randn(1, 192))
    before = resident_mib()
    for num_rows in range(1, most_rows + 1):
        for linear in linears:
            linear(torch.randn(num_rows, 192))
    print(resident_mib() - before)
"""


def growth_mib(num_linears: int, most_rows: int, environment: Mapping[str, str]) -> float:
    """Of a process of its own: what oneDNN keeps is the process's."""
    command = (sys.executable, "-c", GROWTH, str(num_linears), str(most_rows))
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment
    )
    return float(done.stdout)


def test_a_process_does_not_grow_with_every_number_of_rows() -> None:
    grown = growth_mib(1, 600, os.environ)
    assert grown < 150, "it was 370 MiB with a kernel for each"


def test_a_workers_growth_has_an_end_however_many_products_it_meets() -> None:
    """Sixteen linears at 40 numbers of rows: 640 kernels, of which it keeps a few."""
    grown = growth_mib(16, 64, {**os.environ, **ONE_THREAD})
    assert grown < 220, "it was 340 MiB with caches of 1,024"
