"""Finds the Triton kernel of a public function, so that installs without a GPU need no triton."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


@cache
def triton_kernel(name: str) -> Callable[..., Any]:
    """`muxcluster.kernels.triton_ops.<name>.<name>`: the same signature as `kernels.<name>.<name>`.

    The module is loaded by name when the first CUDA tensor comes.
    Raises RuntimeError where triton is not installed.
    """
    try:
        module = import_module(f"muxcluster.kernels.triton_ops.{name}")
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != "triton":
            raise
        raise RuntimeError(
            "tensors on a GPU need triton: install the extra muxcluster[gpu]"
        ) from missing
    kernel: Callable[..., Any] = getattr(module, name)
    return kernel
