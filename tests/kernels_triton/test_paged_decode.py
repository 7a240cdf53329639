"""The Triton kernel of paged_decode, interpreted, against dense float64 attention."""

import pytest
import torch

from kernels.triton_ops import splits as splits_module
from kernels.triton_ops.paged_decode import paged_decode, split_decode
from tests.kernels.paged_cases import TOLERANCES, PagedCase, filled_case, random_query

MANY = {"num_splits": 3, "split_tokens": 16, "tile_tokens": 16}


def check(case: PagedCase, heads: int, *, lengths=None, slots=None, choices=None, **options):
    """The public function, or with `choices` the inner one, row by row against the oracle."""
    slots = slots if slots is not None else list(range(len(case.keys)))
    lengths = lengths or [len(case.keys[slot]) for slot in slots]
    query = random_query(len(slots), heads, case)
    kernel = paged_decode if choices is None else split_decode
    output = kernel(
        query,
        case.pool,
        case.table,
        torch.tensor(slots, dtype=torch.int32),
        torch.tensor(lengths, dtype=torch.int32),
        case.from_right,
        block_tokens=case.block_tokens,
        scale=0.3,
        **options,
        **(choices or {}),
    )
    assert output.dtype == case.dtype
    limit = TOLERANCES[case.dtype]
    for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        expected = torch.zeros(heads, case.head_dim, dtype=torch.float64)
        if length:
            expected = case.attention(query[row : row + 1], slot, length, scale=0.3, **options)[0]
        torch.testing.assert_close(output[row].double(), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_odd_lengths_on_both_sides(head_dim, dtype):
    block = filled_case([1], 1, head_dim, dtype=dtype).block_tokens
    lengths = [1, block - 1, block, block + 1] * 2
    rights = [False] * 4 + [True] * 4
    case = filled_case(lengths, 1, head_dim, dtype=dtype, rights=rights)
    check(case, heads=2)
    check(case, heads=2, choices=MANY)


@pytest.mark.parametrize("group", [1, 3, 8, 17, 35])
def test_grouped_queries(group):
    case = filled_case([3, 70], 2, 64, rights=[True, False])
    check(case, heads=2 * group)
    check(case, heads=2 * group, choices=MANY)


@pytest.mark.parametrize("window", [None, 1, 16, 17, 33, 1000])
@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("choices", [{"tile_tokens": 16}, MANY])
def test_window_and_soft_cap(window, soft_cap, choices):
    case = filled_case([1, 33, 70], 1, 64, rights=[False, True, False])
    check(case, heads=2, sliding_window=window, soft_cap=soft_cap, choices=choices)


@pytest.mark.parametrize("num_splits", [2, 5, 17, 40])
@pytest.mark.parametrize("window", [None, 50])
def test_any_number_of_splits_of_a_ragged_batch(num_splits, window):
    case = filled_case([200, 1, 16, 47, 0], 1, 64, rights=[False, True] * 2 + [True])
    choices = MANY | {"num_splits": num_splits}
    check(case, heads=3, sliding_window=window, choices=choices)


def test_splits_that_are_merged_later_may_outweigh_the_first():
    case = filled_case([300], 1, 64)
    case.keys[0][280:] *= 8
    for position in range(280, 300):
        case.place(0, 0, position, 0).mul_(8)
    check(case, heads=2, choices=MANY | {"num_splits": 40})


def test_large_scores_do_not_overflow():
    case = filled_case([40], 1, 64)
    case.keys[0] *= 64
    for position in range(40):
        case.place(0, 0, position, 0).mul_(64)
    check(case, heads=1)
    check(case, heads=1, soft_cap=30.0)
    check(case, heads=1, choices=MANY)


def test_rows_are_any_slots_at_any_length():
    case = filled_case([70, 5, 90], 2, 64, rights=[False, False, True])
    check(case, heads=4, slots=[2, 0, 2, 1], lengths=[90, 33, 64, 0])


def test_strided_queries_and_long_integers():
    case = filled_case([5, 40, 33], 2, 64)
    query = random_query(3, 4, case).transpose(0, 1).contiguous().transpose(0, 1)
    assert not query.is_contiguous()
    rows = (torch.arange(3), torch.tensor([5, 40, 33]))
    options = {"block_tokens": case.block_tokens, "scale": 0.3}
    output = paged_decode(query, case.pool, case.table, *rows, case.from_right, **options)
    for row, length in enumerate([5, 40, 33]):
        expected = case.attention(query[row : row + 1], row, length, scale=0.3)[0]
        torch.testing.assert_close(output[row].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("choices", [{}, MANY])
def test_a_row_sees_no_more_than_its_table_holds(choices):
    case = filled_case([64], 1, 64)
    table = case.table[:, :, :2]
    query = random_query(1, 1, case)
    outputs = [
        split_decode(
            query,
            case.pool,
            table,
            torch.tensor([0]),
            torch.tensor([length]),
            case.from_right,
            block_tokens=32,
            scale=0.3,
            **choices,
        )
        for length in (64, 65, 10**6)
    ]
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])


def test_no_rows():
    case = filled_case([4], 1, 64)
    none = torch.empty(0, dtype=torch.int32)
    query = random_query(0, 2, case)
    options = {"block_tokens": case.block_tokens, "scale": 1.0}
    output = paged_decode(query, case.pool, case.table, none, none, case.from_right, **options)
    assert output.shape == (0, 2, 64)


@pytest.mark.parametrize("half", [0, 1])
def test_a_corrupted_token_changes_the_output(half):
    case = filled_case([40], 1, 64)
    query = random_query(1, 1, case)
    arguments = (case.table, torch.tensor([0]), torch.tensor([40]), case.from_right)
    options = {"block_tokens": case.block_tokens, "scale": 0.3}
    before = paged_decode(query, case.pool, *arguments, **options)
    case.place(0, 0, 37, half).add_(1.0)
    assert not torch.equal(paged_decode(query, case.pool, *arguments, **options), before)


@pytest.mark.parametrize(
    ("rows", "kv_heads", "max_tokens", "splits"),
    [
        (1, 8, 32768, 128),
        (1, 8, 4096, 16),
        (1, 1, 100, 1),
        (16, 8, 32768, 9),
        (64, 8, 32768, 3),
        (256, 8, 32768, 1),
        (0, 8, 32768, 1),
    ],
)
def test_splits_fill_the_device_and_no_more(monkeypatch, rows, kv_heads, max_tokens, splits):
    monkeypatch.setattr(splits_module, "multiprocessors", lambda device: 132)
    chosen = splits_module.choose_splits(rows, kv_heads, max_tokens, torch.device("cuda"))
    assert chosen == splits


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(2, 3, 64)}, "multiple"),
        ({"pool": torch.zeros(4, 16384)}, "pool"),
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
        "pool": torch.zeros(8, 16384, dtype=torch.uint8),
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
