"""paged_decode against dense float64 attention over the same keys and values."""

import pytest
import torch

from kernels import decode_direct, decode_plan
from kernels.paged_decode import paged_decode
from tests.kernels.paged_cases import TOLERANCES, PagedCase, filled_case, random_query


@pytest.fixture(autouse=True)
def direct_with_any_rows(monkeypatch):
    monkeypatch.setattr(decode_direct, "MIN_ROWS", 0)


def check(case: PagedCase, heads: int, lengths=None, slots=None, **options) -> None:
    slots = slots if slots is not None else list(range(len(case.keys)))
    lengths = lengths or [len(case.keys[slot]) for slot in slots]
    query = random_query(len(slots), heads, case)
    # In fp32, contiguous tables are read directly and others gathered from.
    for table in (case.table, case.table.contiguous()):
        check_output(case, table, query, lengths, slots, options)


def check_output(case: PagedCase, table, query, lengths, slots, options) -> None:
    output = paged_decode(
        query,
        case.pool,
        table,
        torch.tensor(slots, dtype=torch.int32),
        torch.tensor(lengths, dtype=torch.int32),
        case.from_right,
        block_tokens=case.block_tokens,
        scale=0.3,
        **options,
    )
    assert output.dtype == case.dtype
    for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        expected = case.attention(query[row : row + 1], slot, length, scale=0.3, **options)[0]
        limit = TOLERANCES[case.dtype]
        torch.testing.assert_close(output[row].double(), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_odd_lengths_on_both_sides(head_dim, dtype):
    block = filled_case([1], 1, head_dim, dtype=dtype).block_tokens
    lengths = [1, block - 1, block, block + 1] * 2
    rights = [False] * 4 + [True] * 4
    check(filled_case(lengths, 2, head_dim, dtype=dtype, rights=rights), heads=4)


@pytest.mark.parametrize("group", [1, 4, 8])
def test_grouped_queries(group):
    check(filled_case([3, 40, 70], 3, 64, rights=[True, False, True]), heads=3 * group)


@pytest.mark.parametrize("window", [1, 5, 31, 32, 33, 1000])
@pytest.mark.parametrize("soft_cap", [None, 2.0])
def test_window_and_soft_cap(window, soft_cap):
    case = filled_case([1, 31, 32, 33, 100, 129], 2, 64, rights=[False, True] * 3)
    check(case, heads=4, sliding_window=window, soft_cap=soft_cap)


def test_soft_cap_alone():
    check(filled_case([9, 65], 2, 64, rights=[False, True]), heads=2, soft_cap=1.5)


@pytest.mark.parametrize("budget", [1, 1 << 17, 1 << 30])
def test_ragged_batch_in_any_grouping(monkeypatch, budget):
    monkeypatch.setattr(decode_plan, "GROUP_BYTES", budget)
    monkeypatch.setattr(decode_direct, "MAX_INDICES", budget // 64)
    case = filled_case([1, 400, 33, 2, 64, 7, 250, 1], 2, 64, rights=[False, True] * 4)
    check(case, heads=4)
    check(case, heads=4, sliding_window=40)


def test_rows_are_any_slots_at_any_length():
    case = filled_case([70, 5, 90], 2, 64, rights=[False, False, True])
    check(case, heads=4, slots=[2, 0, 2], lengths=[90, 33, 64])


def test_a_row_without_context_yields_zeros():
    case = filled_case([4], 1, 64)
    query = random_query(2, 1, case)
    slots, lengths = torch.tensor([0, 0]), torch.tensor([0, 4])
    options = {"block_tokens": case.block_tokens, "scale": 1.0}
    output = paged_decode(query, case.pool, case.table, slots, lengths, case.from_right, **options)
    assert (output[0] == 0).all()
    assert output[1].isfinite().all() and output[1].any()


def test_strided_queries():
    case = filled_case([5, 40, 33], 2, 64)
    query = random_query(3, 4, case).transpose(0, 1).contiguous().transpose(0, 1)
    assert not query.is_contiguous()
    arguments = (case.pool, case.table, torch.arange(3), torch.tensor([5, 40, 33]))
    options = {"block_tokens": case.block_tokens, "scale": 0.3}
    output = paged_decode(query, *arguments, case.from_right, **options)
    dense = paged_decode(query.contiguous(), *arguments, case.from_right, **options)
    assert torch.equal(output, dense)


def test_a_length_beyond_the_table_is_refused():
    case = filled_case([4], 1, 64)
    beyond = case.table.shape[2] * case.block_tokens + 1
    arguments = (random_query(1, 1, case), case.pool, case.table, torch.tensor([0]))
    with pytest.raises(IndexError):
        paged_decode(
            *arguments, torch.tensor([beyond]), case.from_right, block_tokens=32, scale=1.0
        )


def test_no_rows():
    case = filled_case([4], 1, 64)
    none = torch.empty(0, dtype=torch.int32)
    query = random_query(0, 2, case)
    options = {"block_tokens": case.block_tokens, "scale": 1.0}
    output = paged_decode(query, case.pool, case.table, none, none, case.from_right, **options)
    assert output.shape == (0, 2, 64)


def test_a_corrupted_block_changes_the_output():
    case = filled_case([40], 1, 64)
    query = random_query(1, 1, case)
    arguments = (case.table, torch.tensor([0]), torch.tensor([40]), case.from_right)
    options = {"block_tokens": case.block_tokens, "scale": 0.3}
    before = paged_decode(query, case.pool, *arguments, **options)
    case.place(0, 0, 37, 1).add_(1.0)
    assert not torch.equal(paged_decode(query, case.pool, *arguments, **options), before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(2, 128)}, "query"),
        ({"query": torch.zeros(2, 3, 64)}, "multiple"),
        ({"query": torch.zeros(2, 4, 64, dtype=torch.int32)}, "query"),
        ({"pool": torch.zeros(4, 16384)}, "pool"),
        ({"pool": torch.zeros(4, 16382, dtype=torch.uint8)}, "cannot hold"),
        ({"table": torch.zeros(2, 2, 3)}, "table"),
        ({"from_right": torch.zeros(2)}, "from_right"),
        ({"slots": torch.zeros(3, dtype=torch.int32)}, "slots"),
        ({"lengths": torch.ones(2)}, "lengths"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"soft_cap": 0.0}, "soft_cap"),
        ({"block_tokens": 33}, "cannot hold"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    arguments = {
        "query": torch.zeros(2, 4, 64),
        "pool": torch.zeros(4, 16384, dtype=torch.uint8),
        "table": torch.zeros(2, 2, 3, dtype=torch.int32),
        "slots": torch.arange(2),
        "lengths": torch.ones(2, dtype=torch.int32),
        "from_right": torch.zeros(2, dtype=torch.bool),
        "block_tokens": 32,
        "scale": 1.0,
    }
    paged_decode(**arguments)
    with pytest.raises(ValueError, match=message):
        paged_decode(**(arguments | change))
