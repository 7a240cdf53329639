"""What every latent_attention must do, against dense float64 attention over the same latents."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.kernels.paged_cases import TOLERANCES, PagedCase, filled_case

# Elements of a value, of a latent; KV heads that hold one. The last one's pieces hold both.
SIZES = [(32, 48, 3), (64, 96, 1), (40, 64, 2)]


def latents_of(case: PagedCase, table_row: int) -> Tensor:
    """Float64 [length, width]: of each head in turn the key half, then the value half."""
    return torch.stack((case.keys[table_row], case.values[table_row]), dim=2).flatten(1)


def latent_case(lengths: list[int], size: tuple[int, int, int], **options) -> PagedCase:
    """Sequences of random latents; the kernel need not be told which half of a block is which."""
    _, width, heads = size
    return filled_case(lengths, heads, width // (2 * heads), **options)


def query_of(tokens: int, heads: int, width: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(tokens, heads, width, generator=generator).to(dtype)


def expected_of(case: PagedCase, query: Tensor, table_row: int, end: int, value_width: int):
    """Attention of query [tokens, heads, width], whose last token is at end - 1."""
    latents = latents_of(case, table_row)[:end]
    scores = torch.einsum("qhd,kd->hqk", query.double(), latents) * 0.3
    hidden = torch.arange(end) > torch.arange(end - len(query), end)[:, None]
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,kd->qhd", weights, latents[:, :value_width])


def check(
    function: Callable[..., Tensor],
    case: PagedCase,
    size: tuple[int, int, int],
    heads: int,
    *,
    starts=None,
    table_rows=None,
    **options,
) -> None:
    """`function` must give dense attention: of each row's sequence, from starts[row] to its end."""
    value_width, width, _ = size
    table_rows = table_rows or list(range(len(case.keys)))
    starts = starts or [0] * len(table_rows)
    ends = [len(case.keys[table_row]) for table_row in table_rows]
    offsets = [0, *itertools.accumulate(e - s for s, e in zip(starts, ends, strict=True))]
    query = query_of(offsets[-1], heads, width, case.dtype)
    output = function(
        query,
        case.pool,
        case.table,
        torch.tensor(table_rows, dtype=torch.int32),
        torch.tensor(offsets),
        torch.tensor(starts),
        case.from_right,
        block_tokens=case.block_tokens,
        value_width=value_width,
        scale=0.3,
        **options,
    )
    assert (output.dtype, output.shape) == (case.dtype, (len(query), heads, value_width))
    limit = TOLERANCES[case.dtype]
    for row, table_row in enumerate(table_rows):
        part = slice(offsets[row], offsets[row + 1])
        expected = expected_of(case, query[part], table_row, ends[row], value_width)
        torch.testing.assert_close(output[part].double(), expected, rtol=limit, atol=limit)


class LatentAttentionRules:
    """`latent_attention` is the function under test."""

    latent_attention: Callable[..., Tensor]

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    @pytest.mark.parametrize("size", SIZES)
    def test_odd_lengths_on_both_sides(self, size, dtype):
        # blocks of 8 tokens where a head has 128 elements
        tokens = latent_case([1], size, dtype=dtype, block=4).block_tokens
        lengths = [1, tokens - 1, tokens, tokens + 1] * 2
        rights = [False] * 4 + [True] * 4
        case = latent_case(lengths, size, dtype=dtype, rights=rights, block=4)
        starts = [0, tokens // 3, tokens - 1, tokens, 0, tokens - 2, 1, 5]
        check(self.latent_attention, case, size, heads=4)
        check(self.latent_attention, case, size, heads=4, starts=starts)

    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("heads", [1, 3, 20])
    def test_decode_steps(self, size, heads):
        case = latent_case([1, 40, 7, 90], size, rights=[True, False, True, False], block=4)
        rows = [1, 3, 0, 1, 2]
        starts = [len(case.keys[row]) - 1 for row in rows]
        options = {"table_rows": rows, "starts": starts, "is_decode": True}
        check(self.latent_attention, case, size, heads, **options)

    def test_rows_are_any_table_rows_and_may_be_empty(self):
        size = SIZES[0]
        case = latent_case([40, 7, 33], size)
        rows, starts = [1, 2, 1, 0, 1], [7, 1, 7, 35, 7]
        check(self.latent_attention, case, size, heads=2, table_rows=rows, starts=starts)

    @pytest.mark.parametrize("is_decode", [True, False])
    def test_a_token_at_no_position_sees_nothing(self, is_decode):
        value_width, width, _ = size = SIZES[0]
        case = latent_case([5], size)
        output = self.latent_attention(
            query_of(2, 4, width, torch.float32),
            case.pool,
            case.table,
            torch.tensor([0, 0]),
            torch.tensor([0, 1, 2]),
            torch.tensor([-1, -1]),
            case.from_right,
            block_tokens=case.block_tokens,
            value_width=value_width,
            scale=1.0,
            is_decode=is_decode,
        )
        assert torch.equal(output, torch.zeros(2, 4, value_width))

    def test_strided_queries(self):
        value_width, width, _ = size = SIZES[0]
        case = latent_case([40], size)
        query = query_of(40, 4, width, torch.float32).transpose(0, 1).contiguous().transpose(0, 1)
        assert not query.is_contiguous()
        rows = (torch.tensor([0]), torch.tensor([0, 40]), torch.tensor([0]))
        options = {"block_tokens": case.block_tokens, "value_width": value_width, "scale": 0.3}
        output = self.latent_attention(
            query, case.pool, case.table, *rows, case.from_right, **options
        )
        expected = expected_of(case, query, 0, 40, value_width)
        torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"query": torch.zeros(3, 48)}, "query"),
            ({"query": torch.zeros(3, 4, 50)}, "latents of 50 elements"),
            ({"pool": torch.zeros(4, 16384)}, "pool"),
            ({"table": torch.zeros(2, 3, 3)}, "table"),
            ({"from_right": torch.zeros(2)}, "from_right"),
            ({"starts": torch.zeros(3, dtype=torch.int32)}, "starts"),
            ({"query_offsets": torch.zeros(2, dtype=torch.int32)}, "query_offsets"),
            ({"value_width": 0}, "value_width"),
            ({"value_width": 49}, "value_width"),
            ({"block_tokens": 4096}, "cannot hold"),
        ],
    )
    def test_wrong_arguments_are_named(self, change, message):
        arguments = {
            "query": torch.zeros(3, 4, 48),
            "pool": torch.zeros(4, 16384, dtype=torch.uint8),
            "table": torch.zeros(2, 3, 3, dtype=torch.int32),
            "table_rows": torch.arange(2),
            "query_offsets": torch.tensor([0, 1, 3]),
            "starts": torch.zeros(2, dtype=torch.int32),
            "from_right": torch.zeros(2, dtype=torch.bool),
            "block_tokens": 32,
            "value_width": 32,
            "scale": 1.0,
        }
        self.latent_attention(**arguments)
        with pytest.raises(ValueError, match=message):
            self.latent_attention(**(arguments | change))
