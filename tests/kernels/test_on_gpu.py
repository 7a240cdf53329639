"""Every public kernel goes to a Triton kernel that takes the same arguments."""

import inspect
from importlib import import_module

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from muxcluster.kernels import on_gpu

pytest.importorskip("triton")

NAMES = (
    *("add_rms_norm", "kv_write", "rotary", "sample", "silu_mul", "slot_copy", "sm_ids"),
    *(
        f"attention.{name}"
        for name in ("latent_attention", "paged_decode", "paged_prefill", "prefix_attention")
    ),
    *(f"products.{name}" for name in ("low_rank_update", "mxfp4_product", "quantised_product")),
)


@pytest.mark.parametrize("name", NAMES)
def test_both_take_the_same_arguments(name: str) -> None:
    module, name = import_module(f"muxcluster.kernels.{name}"), name.rpartition(".")[2]
    public = getattr(module, name)
    expected = list(inspect.signature(public).parameters.values())
    twin = list(inspect.signature(on_gpu.triton_kernel(name)).parameters.values())
    assert twin[: len(expected)] == expected
    assert all(more.default is not more.empty for more in twin[len(expected) :])


def test_any_tensor_on_a_gpu_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_gpu, "triton_kernel", lambda name: lambda *args, **options: name)

    @on_gpu.triton_on_gpu
    def kernel(staging: torch.Tensor, runs: torch.Tensor, *, num_bytes: int) -> str:
        return "on the CPU"

    with FakeTensorMode():
        host, device = torch.zeros(2), torch.zeros(2, device="cuda")
        assert kernel(host, host, num_bytes=1) == "on the CPU"
        assert kernel(host, device, num_bytes=1) == "kernel"
