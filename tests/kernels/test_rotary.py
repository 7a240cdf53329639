"""rotary turns pairs as transformers does, and as complex numbers do."""

import pytest
import torch
from transformers.models.cohere import modeling_cohere
from transformers.models.glm import modeling_glm
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from muxcluster.kernels.rotary import HeadNorms, rotary
from tests.kernels.row_cases import assert_rounded, heads_normed, rotary_expected

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def tables(tokens: int, rotary_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [tokens, rotary_dim] of random positions, laid out as Llama's module does."""
    inverse = 10000 ** (-torch.arange(0, rotary_dim, 2) / rotary_dim)
    angles = torch.randint(0, 5000, (tokens, 1)) * inverse
    return torch.cat((angles, angles), 1).cos(), torch.cat((angles, angles), 1).sin()


@pytest.mark.parametrize(
    ("theirs", "rotary_dim", "interleaved"),
    [
        (modeling_llama, 64, False),
        (modeling_gpt_neox, 24, False),
        (modeling_glm, 32, True),
        (modeling_cohere, 64, True),
    ],
)
def test_as_transformers(theirs, rotary_dim, interleaved):
    query, key = torch.randn(5, 4, 64), torch.randn(5, 2, 64)
    cos, sin = tables(5, rotary_dim)
    given = (cos, sin)
    if theirs is modeling_cohere:  # its module repeats each entry at once
        given = tuple(table[:, : rotary_dim // 2].repeat_interleave(2, 1) for table in given)
        cos, sin = (table[:, ::2].repeat(1, 2) for table in given)
    expected = theirs.apply_rotary_pos_emb(query, key, *given, unsqueeze_dim=1)
    rotary(query, key, cos, sin, interleaved)
    torch.testing.assert_close((query, key), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(80, 80), (64, 2), (96, 40)])
def test_against_float64(head_dim, rotary_dim, interleaved, dtype):
    query, key = (torch.randn(3, heads, head_dim).to(dtype) for heads in (5, 1))
    cos, sin = tables(3, rotary_dim)
    expected = [rotary_expected(each, cos, sin, interleaved) for each in (query, key)]
    rotary(query, key, cos, sin, interleaved)
    assert_rounded(query, expected[0])
    assert_rounded(key, expected[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
def test_norms_of_heads_against_float64(interleaved, dtype):
    query, key = (torch.randn(3, heads, 96).to(dtype) for heads in (5, 1))
    norms = HeadNorms(*(torch.randn(96).to(dtype) for _ in range(2)), 1e-5)
    cos, sin = tables(3, 96)
    expected = [
        rotary_expected(heads_normed(each, weight, norms.eps), cos, sin, interleaved)
        for each, weight in ((query, norms.query), (key, norms.key))
    ]
    rotary(query, key, cos, sin, interleaved, norms)
    for actual, wanted in zip((query, key), expected, strict=True):
        assert_rounded(actual, wanted)


def test_norms_of_heads_are_transformers_own():
    joint = torch.randn(4, 8, 32)
    query, key = joint[:, :4], joint[:, 4:6]  # views of one projection
    modules = Qwen3RMSNorm(32), Qwen3RMSNorm(32)
    with torch.no_grad():
        for module in modules:
            module.weight.normal_()
        normed = [module(each) for module, each in zip(modules, (query, key), strict=True)]
        cos, sin = tables(4, 32)
        expected = modeling_llama.apply_rotary_pos_emb(*normed, cos, sin, unsqueeze_dim=1)
        norms = HeadNorms(modules[0].weight.detach(), modules[1].weight.detach(), 1e-6)
        value = joint[:, 6:].clone()
        rotary(query, key, cos, sin, norms=norms)
    torch.testing.assert_close((query, key), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(joint[:, 6:], value)


@pytest.mark.parametrize(
    ("norms", "rotary_dim"),
    [
        (HeadNorms(torch.ones(8), torch.ones(8), 1e-6), 4),
        (HeadNorms(torch.ones(4), torch.ones(8), 1e-6), 8),
        (HeadNorms(torch.ones(8), torch.ones(8).half(), 1e-6), 8),
        (HeadNorms(torch.ones(8), torch.ones(16)[::2], 1e-6), 8),
    ],
)
def test_norms_that_do_not_fit_are_refused(norms, rotary_dim):
    query, key = torch.ones(2, 2, 8), torch.ones(2, 1, 8)
    with pytest.raises(ValueError, match="norm"):
        rotary(query, key, torch.ones(2, rotary_dim), torch.ones(2, rotary_dim), norms=norms)
    assert torch.equal(query, torch.ones(2, 2, 8))


def test_views_of_one_projection_and_no_tokens():
    joint = torch.randn(4, 6, 32)
    query, key, value = joint[:, :3], joint[:, 3:5], joint[:, 5:].clone()
    cos, sin = tables(4, 32)
    expected = rotary_expected(joint[:, :5], cos, sin, False)
    rotary(query, key, cos, sin)
    assert_rounded(joint[:, :5], expected)
    assert torch.equal(joint[:, 5:], value)
    rotary(query[:0], key[:0], cos[:0], sin[:0])


@pytest.mark.parametrize(
    ("key", "cos", "sin"),
    [
        (torch.ones(2, 1, 8).half(), torch.ones(2, 8), torch.ones(2, 8)),
        (torch.ones(2, 1, 6), torch.ones(2, 6), torch.ones(2, 6)),
        (torch.ones(3, 1, 8), torch.ones(2, 8), torch.ones(2, 8)),
        (torch.ones(2, 1, 8), torch.ones(3, 8), torch.ones(3, 8)),
        (torch.ones(2, 1, 8), torch.ones(2, 10), torch.ones(2, 10)),
        (torch.ones(2, 1, 8), torch.ones(2, 3), torch.ones(2, 3)),
        (torch.ones(2, 1, 8), torch.ones(2, 8), torch.ones(2, 4)),
        (torch.ones(2, 1, 8), torch.ones(2, 8).half(), torch.ones(2, 8)),
        (torch.ones(2, 1, 8), torch.ones(2, 1, 8), torch.ones(2, 1, 8)),
    ],
)
def test_refused(key, cos, sin):
    query = torch.ones(2, 2, 8)
    with pytest.raises(ValueError, match="must"):
        rotary(query, key, cos, sin)
    assert torch.equal(query, torch.ones(2, 2, 8))
