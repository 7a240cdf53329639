"""Attention of whole prompts against float64, and how torch's own kernel is asked for it."""

import logging
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from muxcluster.kernels.attention import prompt_attention as module
from muxcluster.kernels.attention.prompt_attention import prompt_attention, takes_prompts

CPU = torch.device("cpu")
TOLERANCES = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    module._way.cache_clear()


def heads_of(tokens: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> list:
    """Queries, keys and values as a merged product leaves them: views of one tensor."""
    joint = torch.randn(tokens, heads + 2 * kv_heads, head_dim).to(dtype)
    return list(torch.split(joint, [heads, kv_heads, kv_heads], dim=1))


def dense(
    parts: list[Tensor], offsets: list[int], scale: float, window: int | None = None
) -> Tensor:
    """The same in float64, a mask over all pairs of tokens."""
    query, key, value = (each.double() for each in parts)
    group = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(group, 1) for each in (key, value))
    lengths = torch.tensor(offsets).diff()
    row = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    distance = torch.arange(len(query))[:, None] - torch.arange(len(query))
    seen = (row[:, None] == row) & (distance >= 0)
    if window is not None:
        seen &= distance < window
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), value)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("offsets", [[0, 1], [0, 33], [0, 2, 2, 31, 32, 65], [0, 300]])
@pytest.mark.parametrize("window", [None, 1, 20, 400])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (7, 1)])
def test_against_float64(dtype, offsets, window, heads, kv_heads):
    parts = heads_of(offsets[-1], heads, kv_heads, 40, dtype)
    longest = int(torch.tensor(offsets).diff().max())
    output = prompt_attention(
        *parts, torch.tensor(offsets, dtype=torch.int32), longest, scale=0.2, sliding_window=window
    )
    limit = TOLERANCES[dtype]
    expected = dense(parts, offsets, 0.2, window)
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": torch.tensor([0, 4])}, "must be int32"),
        ({"offsets": torch.tensor([0], dtype=torch.int32)}, "must be int32"),
        ({"offsets": torch.tensor([0, 3], dtype=torch.int32)}, "rise from 0 to 4"),
        ({"offsets": torch.tensor([0, 3, 2, 4], dtype=torch.int32)}, "rise"),
        ({"key": torch.ones(3, 1, 8)}, "must agree"),
        ({"key": torch.ones(4, 3, 8)}, "must agree"),
        ({"value": torch.ones(4, 1, 8).half()}, "must agree"),
        ({"query": torch.ones(4, 2, 16)[..., ::2]}, "contiguous"),
    ],
)
def test_refused(change, message):
    given = {
        "query": torch.ones(4, 2, 8),
        "key": torch.ones(4, 1, 8),
        "value": torch.ones(4, 1, 8),
        "offsets": torch.tensor([0, 4], dtype=torch.int32),
    }
    with pytest.raises(ValueError, match=message):
        prompt_attention(**{**given, **change}, max_tokens=4, scale=1.0)


def test_what_torchs_kernel_cannot_do_is_not_asked_of_it():
    query, key = torch.ones(4, 2, 8), torch.ones(4, 1, 8)
    assert takes_prompts(query, key, 0.3, None)
    assert not takes_prompts(query, key, 0.3, 20.0)
    assert not takes_prompts(query, key, -0.3, None)


Varlen = Callable[..., Tensor]


class Library:
    """torch's function as versions of it behave; notes the options of each call.

    takes_groups: fewer heads of keys than of queries. scale_error: makes results wrong.
    """

    def __init__(self, *, takes_groups: bool = True, scale_error: float = 1.0) -> None:
        self.calls: list[dict[str, object]] = []
        self._takes_groups = takes_groups
        self._scale_error = scale_error

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        *,
        scale: float,
        window_size: tuple[int, int],
        **options: object,
    ) -> Tensor:
        self.calls.append({**options, "window_size": window_size, "kv_heads": key.shape[1]})
        assert torch.equal(cu_seq_q, cu_seq_k) and cu_seq_q.dtype == torch.int32
        assert max_q == max_k == int(cu_seq_q.diff().max())
        assert window_size[1] == 0
        if not self._takes_groups and query.shape[1] != key.shape[1]:
            raise RuntimeError("heads must be the same\nand more lines")
        window = None if window_size[0] == -1 else window_size[0] + 1
        offsets = cu_seq_q.tolist()
        attended = dense([query, key, value], offsets, scale * self._scale_error, window)
        return attended.to(query.dtype)


def way(monkeypatch: pytest.MonkeyPatch, library: Library, *, knows_groups: bool) -> bool | None:
    monkeypatch.setattr(module, "varlen_attn", library)
    monkeypatch.setattr(module, "_KNOWS_GROUPS", knows_groups)
    return module._way(CPU, torch.bfloat16, 6, 2, 64)


def test_versions_that_know_groups_are_told_of_them(monkeypatch):
    library = Library()
    assert way(monkeypatch, library, knows_groups=True) is False
    assert [call["enable_gqa"] for call in library.calls] == [True, True]
    assert [call["window_size"] for call in library.calls] == [(-1, 0), (69, 0)]


def test_versions_that_just_take_groups_get_no_copies(monkeypatch):
    library = Library()
    assert way(monkeypatch, library, knows_groups=False) is False
    assert all("enable_gqa" not in call and call["kv_heads"] == 2 for call in library.calls)


def test_versions_that_refuse_groups_get_a_head_of_keys_for_each_of_queries(monkeypatch):
    library = Library(takes_groups=False)
    assert way(monkeypatch, library, knows_groups=False) is True
    assert [call["kv_heads"] for call in library.calls] == [2, 6, 6]


@pytest.mark.parametrize("library", [Library(scale_error=3.0), Library(takes_groups=False)])
def test_a_kernel_that_is_wrong_or_fails_is_not_used_and_one_line_says_so(
    monkeypatch, caplog, library
):
    if library._takes_groups:
        reason = "results differ by"
    else:
        reason = "RuntimeError: heads must be the same"
        library._scale_error = 3.0
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert way(monkeypatch, library, knows_groups=False) is None
    (record,) = caplog.records
    assert "use our own attention kernel, not torch's" in record.message
    assert reason in record.message
    assert "\n" not in record.message


def test_the_installed_torch_has_the_arguments_that_are_passed():
    """The real function refuses tensors on the CPU, but only after it took all arguments."""
    parts = heads_of(4, 2, 1, 8, torch.bfloat16)
    offsets = torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="_flash_attention_forward"):
        module._on_gpu(*parts, offsets, 4, scale=0.3, sliding_window=3, expands=False)
