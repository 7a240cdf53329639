"""paged_decode on CPUs keeps the rules: in C++, and in torch, reading in place and gathering."""

import pytest
import torch

from muxcluster.kernels.attention.paged_decode import paged_decode
from muxcluster.kernels.cpu import decode_direct, decode_plan
from tests.kernels.native.switch import without_native
from tests.kernels.paged_cases import filled_case, random_query
from tests.kernels.paged_decode_rules import PagedDecodeRules


@pytest.fixture(autouse=True, params=["C++", "torch"])
def by(request, monkeypatch):
    """In C++, and as without a compiler."""
    monkeypatch.setattr(decode_direct, "MIN_ROWS", 0)
    without_native(request.param == "torch", monkeypatch)


def read_in_place(query, pool, table, *rows, **options):
    """In fp32, contiguous tables are read directly and others gathered from."""
    return paged_decode(query, pool, table.contiguous(), *rows, **options)


class TestPagedDecode(PagedDecodeRules):
    ways = (paged_decode, read_in_place)

    @pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
    def test_odd_lengths_in_bfloat16(self, head_dim):
        self.check_odd_lengths(head_dim, torch.bfloat16)

    @pytest.mark.parametrize("window", [1, 5, 31, 32, 33, 1000])
    @pytest.mark.parametrize("soft_cap", [None, 2.0])
    def test_window_and_soft_cap(self, window, soft_cap):
        case = filled_case([1, 31, 32, 33, 100, 129], 2, 64, rights=[False, True] * 3)
        self.check(case, heads=4, sliding_window=window, soft_cap=soft_cap)

    def test_soft_cap_alone(self):
        self.check(filled_case([9, 65], 2, 64, rights=[False, True]), heads=2, soft_cap=1.5)

    @pytest.mark.parametrize("budget", [1, 1 << 17, 1 << 30])
    def test_ragged_batch_in_any_grouping(self, monkeypatch, budget):
        monkeypatch.setattr(decode_plan, "GROUP_BYTES", budget)
        monkeypatch.setattr(decode_direct, "MAX_INDICES", budget // 64)
        case = filled_case([1, 400, 33, 2, 64, 7, 250, 1], 2, 64, rights=[False, True] * 4)
        self.check(case, heads=4)
        self.check(case, heads=4, sliding_window=40)


def test_a_row_without_context_yields_zeros():
    case = filled_case([4], 1, 64)
    query = random_query(2, 1, case)
    table_rows, lengths = torch.tensor([0, 0]), torch.tensor([0, 4])
    options = {"block_tokens": case.block_tokens, "scale": 1.0}
    output = paged_decode(
        query, case.pool, case.table, table_rows, lengths, case.from_right, **options
    )
    assert (output[0] == 0).all()
    assert output[1].isfinite().all() and output[1].any()


def test_a_length_beyond_the_table_is_refused():
    case = filled_case([4], 1, 64)
    beyond = case.table.shape[2] * case.block_tokens + 1
    arguments = (random_query(1, 1, case), case.pool, case.table, torch.tensor([0]))
    with pytest.raises(IndexError):
        paged_decode(
            *arguments, torch.tensor([beyond]), case.from_right, block_tokens=32, scale=1.0
        )
