"""The plain-torch paged_prefill keeps the rules, and refuses rows that leave their tables."""

import pytest
import torch

from muxcluster.kernels.attention import prompt_attention as module
from muxcluster.kernels.attention.paged_prefill import paged_prefill
from tests.amounts import slow
from tests.kernels.paged_cases import filled_case
from tests.kernels.paged_prefill_rules import PagedPrefillRules, check


class TestPagedPrefill(PagedPrefillRules):
    paged_prefill = staticmethod(paged_prefill)

    @pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
    def test_odd_lengths_in_bfloat16(self, head_dim):
        self.check_odd_lengths(head_dim, torch.bfloat16)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"query_offsets": torch.tensor([0, 1, 2])}, "rise"),
            ({"query_offsets": torch.tensor([0, 4, 3])}, "rise"),
            ({"query_offsets": torch.tensor([1, 1, 3])}, "rise"),
            ({"starts": torch.tensor([0, 95])}, "beyond"),
        ],
    )
    def test_wrong_values_are_named(self, change, message):
        self.check_refused(change, message)


@pytest.mark.parametrize("window", [1, 32, 33, *slow(5, 31, 1000)])
@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("tile", [16, 256])
def test_window_and_soft_cap(monkeypatch, window, soft_cap, tile):
    monkeypatch.setattr(module, "TILE_TOKENS", tile)
    case = filled_case([1, 31, 32, 33, 100, 129], 2, 64, rights=[False, True] * 3)
    options = {"sliding_window": window, "soft_cap": soft_cap}
    check(paged_prefill, case, heads=4, **options)
    check(paged_prefill, case, heads=4, starts=[0, 30, 7, 32, 64, 50], **options)


def test_soft_cap_alone():
    check(paged_prefill, filled_case([9, 65], 2, 64, rights=[False, True]), heads=2, soft_cap=1.5)


def test_chunks_longer_than_a_tile():
    check(paged_prefill, filled_case([700], 1, 64), heads=2, starts=[100])
