"""kv_write on CPUs keeps the rules, in C++ and in torch."""

import pytest
import torch

from muxcluster.kernels.kv_write import kv_write
from tests.kernels.kv_write_rules import KvWriteRules
from tests.kernels.native.switch import without_native


@pytest.fixture(autouse=True, params=["C++", "torch"])
def by(request, monkeypatch):
    """In C++, and as without a compiler."""
    without_native(request.param == "torch", monkeypatch)


class TestKvWrite(KvWriteRules):
    kv_write = staticmethod(kv_write)

    @pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
    def test_every_token_of_bfloat16_lands_in_its_place(self, head_dim):
        self.check_every_token(head_dim, torch.bfloat16)
