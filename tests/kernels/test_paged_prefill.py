"""paged_prefill against dense float64 attention over the same keys and values."""

import itertools

import pytest
import torch

from kernels import paged_prefill as module
from kernels.paged_prefill import paged_prefill
from tests.kernels.paged_cases import TOLERANCES, PagedCase, filled_case, random_query


def check(case: PagedCase, heads: int, starts=None, slots=None, **options) -> None:
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
        scale=0.3,
        **options,
    )
    assert output.dtype == case.dtype
    limit = TOLERANCES[case.dtype]
    for row, slot in enumerate(slots):
        part = slice(offsets[row], offsets[row + 1])
        if counts[row]:
            expected = case.attention(query[part], slot, ends[row], scale=0.3, **options)
            torch.testing.assert_close(output[part].double(), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_odd_lengths_on_both_sides(head_dim, dtype):
    block = filled_case([1], 1, head_dim, dtype=dtype).block_tokens
    lengths = [1, block - 1, block, block + 1] * 2
    rights = [False] * 4 + [True] * 4
    case = filled_case(lengths, 2, head_dim, dtype=dtype, rights=rights)
    check(case, heads=4)
    check(case, heads=4, starts=[0, 3, block - 1, block, 0, block - 2, 1, 5])


@pytest.mark.parametrize("group", [1, 4, 8])
def test_grouped_queries(group):
    case = filled_case([3, 40, 70], 3, 64, rights=[True, False, True])
    check(case, heads=3 * group, starts=[0, 8, 0])


@pytest.mark.parametrize("window", [1, 5, 31, 32, 33, 1000])
@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("tile", [16, 256])
def test_window_and_soft_cap(monkeypatch, window, soft_cap, tile):
    monkeypatch.setattr(module, "TILE_TOKENS", tile)
    case = filled_case([1, 31, 32, 33, 100, 129], 2, 64, rights=[False, True] * 3)
    options = {"sliding_window": window, "soft_cap": soft_cap}
    check(case, heads=4, **options)
    check(case, heads=4, starts=[0, 30, 7, 32, 64, 50], **options)


def test_soft_cap_alone():
    check(filled_case([9, 65], 2, 64, rights=[False, True]), heads=2, soft_cap=1.5)


def test_chunks_longer_than_a_tile():
    check(filled_case([700], 1, 64), heads=2, starts=[100])


def test_rows_are_any_slots_and_may_be_empty():
    case = filled_case([40, 7, 33], 2, 64)
    check(case, heads=2, slots=[2, 1, 0], starts=[1, 7, 35])


def test_strided_queries():
    case = filled_case([5, 40], 2, 64)
    query = random_query(45, 4, case).transpose(0, 1).contiguous().transpose(0, 1)
    assert not query.is_contiguous()
    rows = (torch.arange(2), torch.tensor([0, 5, 45]), torch.zeros(2, dtype=torch.int32))
    options = {"block_tokens": case.block_tokens, "scale": 0.3}
    output = paged_prefill(query, case.pool, case.table, *rows, case.from_right, **options)
    for row, part in enumerate([slice(0, 5), slice(5, 45)]):
        expected = case.attention(query[part], row, part.stop - part.start, scale=0.3)
        torch.testing.assert_close(output[part].double(), expected, rtol=1e-5, atol=1e-5)


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(3, 128)}, "query"),
        ({"query": torch.zeros(3, 3, 64)}, "multiple"),
        ({"pool": torch.zeros(4, 16384)}, "pool"),
        ({"table": torch.zeros(2, 2, 3)}, "table"),
        ({"from_right": torch.zeros(2)}, "from_right"),
        ({"slots": torch.zeros((), dtype=torch.int32)}, "slots"),
        ({"starts": torch.zeros(3, dtype=torch.int32)}, "starts"),
        ({"query_offsets": torch.zeros(2, dtype=torch.int32)}, "query_offsets"),
        ({"query_offsets": torch.tensor([0, 1, 2])}, "rise"),
        ({"query_offsets": torch.tensor([0, 4, 3])}, "rise"),
        ({"query_offsets": torch.tensor([1, 1, 3])}, "rise"),
        ({"starts": torch.tensor([0, 95])}, "beyond"),
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
