"""The Triton rotary, interpreted, against complex numbers in float64."""

import pytest
import torch

from muxcluster.kernels.rotary import HeadNorms
from muxcluster.kernels.triton_ops.rotary import rotary
from tests.kernels.row_cases import (
    assert_rounded,
    assert_surroundings_untouched,
    heads_normed,
    rotary_expected,
    surrounded,
)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotary_dim"),
    [
        (1, 1, 64, 64),
        (15, 5, 80, 80),
        (16, 1, 128, 128),
        (17, 17, 96, 40),
        (8, 2, 256, 2),
        (3, 16, 64, 34),
    ],
)
def test_against_float64(heads, kv_heads, head_dim, rotary_dim, interleaved, dtype):
    for tokens, table_dtype in ((1, torch.float32), (3, dtype)):
        query = surrounded((tokens, heads, head_dim), dtype)
        key = surrounded((tokens, kv_heads, head_dim), dtype)
        cos, sin = (surrounded((tokens, rotary_dim), table_dtype) for _ in range(2))
        cos[:, rotary_dim // 2 :] = sin[:, rotary_dim // 2 :] = float("nan")  # never read
        expected = [rotary_expected(each, cos, sin, interleaved) for each in (query, key)]
        rotary(query, key, cos, sin, interleaved)
        for actual, wanted in zip((query, key), expected, strict=True):
            assert_rounded(actual, wanted)
            assert torch.equal(actual[..., rotary_dim:], wanted[..., rotary_dim:].to(dtype))
            assert_surroundings_untouched(actual)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(1, 1, 64), (15, 5, 80), (16, 1, 128), (17, 3, 96)]
)
def test_norms_of_heads_against_float64(heads, kv_heads, head_dim, interleaved, dtype):
    query = surrounded((3, heads, head_dim), dtype)
    key = surrounded((3, kv_heads, head_dim), dtype)
    norms = HeadNorms(*(torch.randn(head_dim).to(dtype) for _ in range(2)), 1e-5)
    cos, sin = torch.randn(2, 3, head_dim)
    expected = [
        rotary_expected(heads_normed(each, weight, norms.eps), cos, sin, interleaved)
        for each, weight in ((query, norms.query), (key, norms.key))
    ]
    rotary(query, key, cos, sin, interleaved, norms)
    for actual, wanted in zip((query, key), expected, strict=True):
        assert_rounded(actual, wanted)
        assert_surroundings_untouched(actual)


def test_views_of_one_product_are_turned_where_they_lie():
    """Queries and keys as a merged product leaves them: side by side, before the values."""
    joint = torch.randn(3, 8, 64)
    query, key, value = joint.split((5, 1, 2), dim=1)
    kept = value.clone()
    norms = HeadNorms(torch.randn(64), torch.randn(64), 1e-6)
    cos, sin = torch.randn(2, 3, 64)
    expected = [
        rotary_expected(heads_normed(each, weight, norms.eps), cos, sin, False)
        for each, weight in ((query, norms.query), (key, norms.key))
    ]
    rotary(query, key, cos, sin, norms=norms)
    assert_rounded(joint[:, :6], torch.cat(expected, dim=1))
    assert torch.equal(joint[:, 6:], kept)


def test_heads_laid_out_before_tokens():
    """As transformers' attention holds them: [heads, tokens, head_dim], seen as [tokens, heads]."""
    query, key = torch.randn(4, 5, 32).transpose(0, 1), torch.randn(2, 5, 32).transpose(0, 1)
    cos, sin = torch.randn(2, 5, 32)
    expected = [rotary_expected(each, cos, sin, False) for each in (query, key)]
    rotary(query, key, cos, sin)
    assert_rounded(query, expected[0])
    assert_rounded(key, expected[1])


def test_nothing_to_turn():
    query, key = torch.randn(2, 4, 32), torch.randn(2, 2, 32)
    before = query.clone()
    rotary(query, key, torch.empty(2, 0), torch.empty(2, 0))
    rotary(query[:0], key[:0], torch.empty(0, 32), torch.empty(0, 32))
    rotary(query[:, :0], key[:, :0], torch.ones(2, 32), torch.ones(2, 32))
    assert torch.equal(query, before)
    with pytest.raises(ValueError, match="query and key must agree"):
        rotary(query, key[:1], torch.ones(2, 32), torch.ones(2, 32))
