"""The Triton kernel of kv_write, interpreted, keeps the rules."""

import pytest
import torch

from muxcluster.kernels.triton_ops.kv_write import kv_write
from tests.kernels.kv_write_rules import KvWriteRules
from tests.kernels.paged_cases import empty_case


class TestKvWrite(KvWriteRules):
    kv_write = staticmethod(kv_write)

    @pytest.mark.parametrize("tokens", [1, 5, 6, 11])
    def test_heads_that_do_not_fill_a_program(self, tokens):
        case = empty_case([tokens], 3, 64)
        key, value = torch.randn(2, tokens, 3, 64)
        self.write(case, key, value, [0] * tokens, list(range(tokens)))
        for position in range(tokens):
            for head in range(3):
                assert torch.equal(case.place(0, head, position, 0), key[position, head])
                assert torch.equal(case.place(0, head, position, 1), value[position, head])
        # Two halves of each token and nothing else were written.
        assert (case.pool != 0xFF).view(-1, 4).any(1).sum() == 2 * tokens * 3 * 64
