"""Tests of kernels that have a C++ twin run with it and without."""

import pytest

from muxcluster.kernels.native import attention, products


def without_native(is_off: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the C++ kernels away, or skip the test where there are none."""
    if is_off:
        monkeypatch.setattr(attention, "_library", lambda: None)
        monkeypatch.setattr(products, "_function", lambda: None)
    elif not products.is_available():
        pytest.skip("no C++ compiler, or not this processor")
