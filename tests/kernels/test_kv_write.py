"""The plain-torch kv_write keeps the rules."""

import pytest
import torch

from muxcluster.kernels.kv_write import kv_write
from tests.kernels.kv_write_rules import KvWriteRules


class TestKvWrite(KvWriteRules):
    kv_write = staticmethod(kv_write)

    @pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
    def test_every_token_of_bfloat16_lands_in_its_place(self, head_dim):
        self.check_every_token(head_dim, torch.bfloat16)
