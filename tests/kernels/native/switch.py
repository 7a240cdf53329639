"""Tests of kernels that have a C++ twin run with it and without."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from muxcluster.kernels.native import attention, experts, products, step


def without_native(is_off: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the C++ kernels away, or skip the test where there are none."""
    if is_off:
        monkeypatch.setattr(attention, "_library", lambda: None)
        monkeypatch.setattr(experts, "_library", lambda: None)
        monkeypatch.setattr(products, "_function", lambda: None)
        monkeypatch.setattr(step, "_function", lambda: None)
    elif not has_native():
        pytest.skip("no C++ compiler here")


def has_native() -> bool:
    """Return whether there are C++ kernels; fail where a compiler is and yet there are none."""
    kinds = (products, experts, step)
    if attention.can_turn() and all(each.is_available() for each in kinds):
        return True
    if shutil.which("g++") and "avx2" in Path("/proc/cpuinfo").read_text():
        pytest.fail("there is g++, and its kernels cannot be had")
    return False


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Two threads for the tests of a module that imports this; without the kernels they skip."""
    if not has_native():
        pytest.skip("no C++ compiler here")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
