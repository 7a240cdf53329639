"""The plain-torch latent_attention keeps the rules, and what is written is what is read."""

import pytest
import torch

from muxcluster.kernels.attention import latent_attention as module
from muxcluster.kernels.attention.latent_attention import latent_attention, latent_halves
from muxcluster.kernels.cpu import latent_rows
from muxcluster.kernels.kv_write import kv_write
from tests.kernels.latent_rules import (
    SIZES,
    LatentAttentionRules,
    check,
    expected_of,
    latent_case,
    latents_of,
    query_of,
)
from tests.kernels.paged_cases import empty_case


class TestLatentAttention(LatentAttentionRules):
    latent_attention = staticmethod(latent_attention)

    def test_bfloat16(self):
        case = latent_case([9, 70], SIZES[0], dtype=torch.bfloat16, rights=[True, False])
        check(latent_attention, case, SIZES[0], heads=4, starts=[0, 60])


@pytest.mark.parametrize("size", SIZES)
def test_written_latents_are_read(size):
    value_width, width, heads = size
    case = latent_case([21], size, rights=[True])
    empty = empty_case([21], heads, width // (2 * heads), rights=[True])
    latents = latents_of(case, 0).float()
    where = (empty.table, torch.zeros(21).long(), torch.arange(21), empty.from_right)
    kv_write(empty.pool, *latent_halves(latents, heads), *where, empty.block_tokens)
    query = query_of(21, 3, width, torch.float32)
    rows = (torch.tensor([0]), torch.tensor([0, 21]), torch.tensor([0]))
    found = latent_attention(
        query,
        empty.pool,
        empty.table,
        *rows,
        empty.from_right,
        block_tokens=empty.block_tokens,
        value_width=value_width,
        scale=0.3,
    )
    expected = expected_of(case, query, 0, 21, value_width)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_prompts_are_computed_in_parts(monkeypatch):
    monkeypatch.setattr(module, "MOST_SCORES", 200)
    case = latent_case([50, 33], SIZES[0], rights=[True, False])
    check(latent_attention, case, SIZES[0], heads=3, starts=[0, 20])


def test_decode_rows_are_gathered_in_parts(monkeypatch):
    monkeypatch.setattr(latent_rows, "GROUP_BYTES", 1)
    case = latent_case([50, 33, 50, 1], SIZES[0], rights=[True, False] * 2)
    starts = [49, 32, 49, 0]
    check(latent_attention, case, SIZES[0], heads=3, starts=starts, is_decode=True)


def test_offsets_that_do_not_rise_and_rows_beyond_their_table_are_named():
    case = latent_case([4], SIZES[0])
    query = query_of(4, 2, 48, torch.float32)

    def attend(offsets, start):
        rows = (torch.tensor([0]), torch.tensor(offsets), torch.tensor([start]))
        options = {"block_tokens": case.block_tokens, "value_width": 32, "scale": 1.0}
        return latent_attention(query, case.pool, case.table, *rows, case.from_right, **options)

    with pytest.raises(ValueError, match="rise"):
        attend([0, 3], 0)
    with pytest.raises(ValueError, match="beyond"):
        attend([0, 4], 10**6)
