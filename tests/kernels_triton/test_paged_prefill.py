"""The Triton kernel of paged_prefill, interpreted, against dense float64 attention."""

import itertools

import pytest
import torch

from kernels.triton_ops.paged_prefill import paged_prefill
from kernels.triton_ops.prefill_tiling import Tiling, choose_tiling
from tests.kernels.paged_cases import TOLERANCES, PagedCase, filled_case, random_query

SMALL = Tiling(members=16, keys=16, num_warps=4, num_stages=3)


def check(case: PagedCase, heads: int, *, starts=None, slots=None, scale=0.3, **options) -> None:
    """Each row's queries are its slot's tokens from starts[row] to the end."""
    slots = slots or list(range(len(case.keys)))
    starts = starts or [0] * len(slots)
    ends = [len(case.keys[slot]) for slot in slots]
    counts = [end - start for start, end in zip(starts, ends, strict=True)]
    offsets = [0, *itertools.accumulate(counts)]
    query = random_query(offsets[-1], heads, case)
    output = paged_prefill(
        query,
        case.pool,
        case.table,
        torch.tensor(slots, dtype=torch.int32),
        torch.tensor(offsets, dtype=torch.int32),
        torch.tensor(starts, dtype=torch.int32),
        case.from_right,
        block_tokens=case.block_tokens,
        scale=scale,
        **options,
    )
    assert output.dtype == case.dtype
    options.pop("tiling", None)
    limit = TOLERANCES[case.dtype]
    for row, slot in enumerate(slots):
        part = slice(offsets[row], offsets[row + 1])
        if counts[row]:
            expected = case.attention(query[part], slot, ends[row], scale=scale, **options)
            torch.testing.assert_close(output[part].double(), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_odd_lengths_on_both_sides(head_dim, dtype):
    block = filled_case([1], 1, head_dim, dtype=dtype).block_tokens
    lengths = [1, block - 1, block, block + 1] * 2
    rights = [False] * 4 + [True] * 4
    case = filled_case(lengths, 1, head_dim, dtype=dtype, rights=rights)
    check(case, heads=2)
    check(case, heads=2, starts=[0, 3, block - 1, block, 0, block - 2, 1, 5])


@pytest.mark.parametrize("group", [1, 3, 7, 8, 17])
def test_groups_share_a_tile(group):
    case = filled_case([3, 40, 70], 2, 64, dtype=torch.float16, rights=[True, False, True])
    check(case, heads=2 * group, starts=[0, 8, 0])


@pytest.mark.parametrize("group", [3, 8])
def test_a_tile_ends_inside_a_group(group):
    case = filled_case([3, 20], 2, 64, rights=[True, False])
    check(case, heads=2 * group, starts=[0, 8], tiling=SMALL)


@pytest.mark.parametrize("window", [None, 1, 7, 15, 16, 17, 33, 1000])
@pytest.mark.parametrize("soft_cap", [None, 2.0])
def test_window_and_soft_cap(window, soft_cap):
    case = filled_case([1, 33, 90], 1, 64, rights=[False, True, False])
    options = {"sliding_window": window, "soft_cap": soft_cap, "tiling": SMALL}
    check(case, heads=1, starts=[0, 20, 0], **options)


@pytest.mark.parametrize("count", [15, 16, 17, 33])
@pytest.mark.parametrize("before", [0, 14, 15, 16])
def test_every_edge_of_a_tile(before, count):
    case = filled_case([before + count, count], 1, 64, rights=[True, False])
    check(case, heads=1, starts=[before, 0], tiling=SMALL)
    check(case, heads=1, starts=[before, 0], tiling=SMALL, sliding_window=16)


def test_more_rows_than_are_looked_at_together():
    case = filled_case([1, 9, 1], 1, 64, rights=[False, True, False])
    check(case, heads=1, slots=[0, 1, 2] * 45, starts=[0, 8, 1] * 45, tiling=SMALL)


def test_rows_are_any_slots_and_may_be_empty():
    case = filled_case([40, 7, 33], 2, 64)
    check(case, heads=2, slots=[1, 2, 1, 0, 1], starts=[7, 1, 7, 35, 7])


def test_large_scores_do_not_overflow():
    case = filled_case([40], 1, 64)
    case.keys[0] *= 64
    for position in range(40):
        case.place(0, 0, position, 0).mul_(64)
    check(case, heads=1, tiling=SMALL)
    check(case, heads=1, tiling=SMALL, soft_cap=30.0)


@pytest.mark.parametrize("scale", [0.0, -0.3])
def test_any_scale(scale):
    case = filled_case([40], 1, 64)
    check(case, heads=1, scale=scale, tiling=SMALL)
    check(case, heads=1, scale=scale, tiling=SMALL, soft_cap=2.0)


def test_strided_queries_and_long_integers():
    case = filled_case([5, 40], 2, 64)
    query = random_query(45, 4, case).transpose(0, 1).contiguous().transpose(0, 1)
    assert not query.is_contiguous()
    rows = (torch.arange(2), torch.tensor([0, 5, 45]), torch.zeros(2, dtype=torch.int64))
    options = {"block_tokens": case.block_tokens, "scale": 0.3}
    output = paged_prefill(query, case.pool, case.table, *rows, case.from_right, **options)
    for row, part in enumerate([slice(0, 5), slice(5, 45)]):
        expected = case.attention(query[part], row, part.stop - part.start, scale=0.3)
        torch.testing.assert_close(output[part].double(), expected, rtol=1e-5, atol=1e-5)


def test_a_row_sees_no_more_than_its_table_holds():
    case = filled_case([64], 1, 64)
    query = random_query(8, 1, case)
    rows = (torch.tensor([0]), torch.tensor([0, 8]))
    options = {"block_tokens": 32, "scale": 0.3, "tiling": SMALL}
    output = paged_prefill(
        query,
        case.pool,
        case.table[:, :, :2],
        *rows,
        torch.tensor([60]),
        case.from_right,
        **options,
    )
    expected = case.attention(query[:4], 0, 64, scale=0.3)
    # Queries beyond the table see what the last one in it sees.
    for row in range(4, 8):
        beyond = case.attention(query[row : row + 1], 0, 64, scale=0.3)
        expected = torch.cat((expected, beyond))
    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-5)


def test_no_rows():
    case = filled_case([4], 1, 64)
    none = torch.empty(0, dtype=torch.int32)
    offsets = torch.zeros(1, dtype=torch.int32)
    query = random_query(0, 2, case)
    options = {"block_tokens": case.block_tokens, "scale": 1.0}
    output = paged_prefill(
        query, case.pool, case.table, none, offsets, none, case.from_right, **options
    )
    assert output.shape == (0, 2, 64)


@pytest.mark.parametrize("half", [0, 1])
def test_a_corrupted_token_changes_what_comes_after_it(half):
    case = filled_case([40], 1, 64)
    query = random_query(40, 1, case)
    rows = (torch.tensor([0]), torch.tensor([0, 40]), torch.tensor([0]))
    options = {"block_tokens": case.block_tokens, "scale": 0.3}
    before = paged_prefill(query, case.pool, case.table, *rows, case.from_right, **options)
    case.place(0, 0, 17, half).add_(1.0)
    after = paged_prefill(query, case.pool, case.table, *rows, case.from_right, **options)
    assert torch.equal(before[:17], after[:17])
    assert (before[17:] != after[17:]).any(-1).all()


@pytest.mark.parametrize(
    ("members", "group", "block"),
    [(1, 1, 16), (20, 4, 32), (128, 8, 128), (8192, 1, 128), (3, 17, 32), (99, 200, 256)],
)
def test_tiles_are_as_large_as_the_rows_need(members, group, block):
    assert choose_tiling(members, group, 128, torch.bfloat16, 9).members == block


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(3, 3, 64)}, "multiple"),
        ({"pool": torch.zeros(4, 16384)}, "pool"),
        ({"table": torch.zeros(2, 2, 3)}, "table"),
        ({"from_right": torch.zeros(2)}, "from_right"),
        ({"slots": torch.zeros((), dtype=torch.int32)}, "slots"),
        ({"starts": torch.zeros(3, dtype=torch.int32)}, "starts"),
        ({"query_offsets": torch.zeros(2, dtype=torch.int32)}, "query_offsets"),
        ({"sliding_window": -1}, "sliding_window"),
        ({"soft_cap": -1.0}, "soft_cap"),
        ({"block_tokens": 33}, "cannot hold"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    arguments = {
        "query": torch.zeros(3, 4, 64),
        "pool": torch.zeros(4, 16384, dtype=torch.uint8),
        "table": torch.zeros(2, 2, 3, dtype=torch.int32),
        "slots": torch.arange(2),
        "query_offsets": torch.tensor([0, 1, 3]),
        "starts": torch.zeros(2, dtype=torch.int32),
        "from_right": torch.zeros(2, dtype=torch.bool),
        "block_tokens": 32,
        "scale": 1.0,
    }
    paged_prefill(**arguments)
    with pytest.raises(ValueError, match=message):
        paged_prefill(**(arguments | change))
