"""Dispatch of public kernels: CUDA tensors go to the Triton function of the same name."""

from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def triton_on_gpu(on_cpu: Callable[P, R]) -> Callable[P, R]:
    """Return `on_cpu` for tensors on the CPU and its Triton twin for tensors on a GPU.

    The twin is `muxcluster.kernels.triton_ops.<name>.<name>` and takes the same arguments. It is
    called where any positional argument is a CUDA tensor (others may be pinned host memory). Each
    of the two checks its arguments with the same function.
    """
    name = on_cpu.__name__

    @wraps(on_cpu)
    def dispatched(*args: P.args, **options: P.kwargs) -> R:
        if any(isinstance(each, Tensor) and each.is_cuda for each in args):
            result: R = triton_kernel(name)(*args, **options)
            return result
        return on_cpu(*args, **options)

    return dispatched


@cache
def triton_kernel(name: str) -> Callable[..., Any]:
    """Return the Triton twin of the public kernel `name`, which has a module of that name.

    Raises RuntimeError where triton is not installed.
    """
    try:
        # By name and at the first call, so that installs without a GPU need no triton.
        module = import_module(f"muxcluster.kernels.triton_ops.{name}")
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != "triton":
            raise
        raise RuntimeError(
            "tensors on a GPU need triton: install the extra muxcluster[gpu]"
        ) from missing
    kernel: Callable[..., Any] = getattr(module, name)
    return kernel
