"""Attention of a batch on the GPU's path and on the CPU's against dense float64 attention."""

import pytest
import torch
from torch import Tensor

from muxcluster.core.job import Side
from muxcluster.engine.forward import paged_attention as attention_paged
from muxcluster.engine.forward.attention import LayerAttention, LayerCall
from muxcluster.engine.forward.batch import TokenBatch, token_batch
from muxcluster.engine.forward.cpu_attention import PlannedAttention
from muxcluster.engine.forward.paged_attention import PagedAttention
from muxcluster.engine.memory.arena import ModelArena
from muxcluster.engine.steps import runner
from muxcluster.kernels.attention.prompt_attention import prompt_attention
from tests.engine.conftest import ModelBuilder
from tests.engine.driver import drivers, ragged, unit_of
from tests.engine.forward.test_batch import CPU, arrays
from tests.kernels.paged_cases import TOLERANCES, PagedCase, filled_case, random_query

LENGTHS = [33, 1, 70, 32, 15, 64, 2, 31, 96, 40]
RIGHTS = [False, True, True, False, False, True, True, False, True, False]
SINGLES = [(row, LENGTHS[row] - 1, 1) for row in (7, 2, 0, 9, 1, 3, 8, 4, 6, 5)]
CHUNKS = [(5, 0, 64), (0, 30, 3), (8, 32, 33), (6, 0, 2), (7, 20, 11)]
BATCHES = {
    "many singles": SINGLES,
    "few singles": SINGLES[:4],
    "chunks": CHUNKS,
    "one prompt": [(5, 0, 64)],
    "prompts": [(5, 0, 64), (6, 0, 2), (8, 0, 96), (7, 0, 31)],
    "prompts and singles": [SINGLES[0], (6, 0, 2), (5, 0, 64), SINGLES[1]],
    "both": [
        CHUNKS[0],
        *SINGLES[1:5],
        CHUNKS[3],
        (3, 31, 1),
        (9, 7, 1),
        *CHUNKS[4:],
        *SINGLES[7:8],
    ],
}
"""Rows of table row, start and count; a chunk may end before its prompt does."""

PLAIN = LayerCall(0, 0.3, None, None)
CALLS = {
    "plain": (PLAIN, LayerCall(1, 0.2, None, None)),
    "window": (LayerCall(0, 0.3, 20, None), LayerCall(1, 0.3, None, None)),
    "windows and cap": (LayerCall(0, 0.3, 33, 2.0), LayerCall(1, 0.3, 5, 1.5)),
    "sinks": (
        LayerCall(0, 0.3, 20, None, sinks=torch.linspace(-3, 8, 8)),
        LayerCall(1, 0.3, None, None, sinks=torch.linspace(5, -4, 8)),
    ),
}
"""What two layers ask for."""


class TwoLayers:
    """Two layers' sequences in one pool, whose other bytes are NaN; `cases` hold their numbers."""

    def __init__(
        self, kv_heads: int, dtype: torch.dtype, kv_dtype: torch.dtype | None = None
    ) -> None:
        options = {"dtype": dtype, "rights": RIGHTS, "kv_dtype": kv_dtype}
        self.cases = [filled_case(LENGTHS, kv_heads, 64, **options) for _ in range(2)]
        first, second = self.cases
        if kv_dtype is None:  # other keys and values than the first layer's
            second.pool.view(dtype).neg_()
        for numbers in (*second.keys, *second.values) if kv_dtype is None else ():
            numbers.neg_()
        num_blocks = len(first.pool)
        self.pool = torch.cat((first.pool, second.pool))
        first.pool, second.pool = self.pool[:num_blocks], self.pool[num_blocks:]
        self.arena = ModelArena(
            tables=torch.stack((first.table, second.table + num_blocks), dim=1),
            history=torch.empty(0, dtype=torch.int32),
            from_right=first.from_right,
            block_tokens=first.block_tokens,
            kv_dtype=kv_dtype,
        )

    def forget(self, rows: list[tuple[int, int, int]]) -> None:
        """Make the rows' tokens NaN: they are yet to be written."""
        for case in self.cases:
            for row, start, count in rows:
                for position in range(start, start + count):
                    for head in range(case.table.shape[1]):
                        for half in (0, 1):
                            case.slot(row, head, position, half).fill_(0xFF)


def check_layer(
    attention: LayerAttention,
    case: PagedCase,
    rows: list[tuple[int, int, int]],
    heads: int,
    call: LayerCall,
) -> None:
    key, value = (_of_rows(numbers, rows, case.dtype) for numbers in (case.keys, case.values))
    query = random_query(len(key), heads, case)
    output = attention.attend(query, key, value, call)
    assert output.shape == query.shape and output.dtype == query.dtype
    limit, first = TOLERANCES[case.dtype], 0
    for row, start, count in rows:
        part = slice(first, first + count)
        first += count
        expected = case.attention(
            query[part],
            row,
            start + count,
            scale=call.scale,
            sliding_window=call.sliding_window,
            soft_cap=call.soft_cap,
            sinks=call.sinks,
        )
        torch.testing.assert_close(output[part].double(), expected, rtol=limit, atol=limit)


def _of_rows(numbers: list[Tensor], rows: list[tuple[int, int, int]], dtype: torch.dtype) -> Tensor:
    """The rows' new keys or values [tokens, kv_heads, head_dim]."""
    parts = [numbers[row][start : start + count] for row, start, count in rows]
    return torch.cat(parts).to(dtype)


def both_ways(layers: TwoLayers, batch: TokenBatch, pool: Tensor) -> list[LayerAttention]:
    """The pool is the first one's; the other one has `pool`."""
    return [
        PagedAttention(layers.pool, layers.arena, batch),
        PlannedAttention(pool, layers.arena, batch),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("rows", BATCHES.values(), ids=BATCHES)
def test_both_paths_give_dense_attention(rows, calls, dtype) -> None:
    layers = TwoLayers(2, dtype)
    layers.forget(rows)
    pool = layers.pool.clone()
    for attention in both_ways(layers, token_batch(*arrays(rows), CPU), pool):
        for case, call in zip(layers.cases, calls, strict=True):
            check_layer(attention, case, rows, 8, call)
    assert torch.equal(layers.pool, pool)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("rows", [BATCHES["both"], BATCHES["prompts"]], ids=["both", "prompts"])
def test_both_paths_attend_to_rounded_keys_and_values(rows, kv_dtype, dtype) -> None:
    """Prompts that begin too: nobody's output depends on where its prompt was cut."""
    layers = TwoLayers(2, dtype, kv_dtype)
    layers.forget(rows)
    pool = layers.pool.clone()
    for attention in both_ways(layers, token_batch(*arrays(rows), CPU), pool):
        for calls in (CALLS["plain"], CALLS["sinks"]):
            for case, call in zip(layers.cases, calls, strict=True):
                check_layer(attention, case, rows, 8, call)
    assert torch.equal(layers.pool, pool)


def test_prompts_that_begin_attend_to_their_own_keys(monkeypatch) -> None:
    """Not to the pool, but where there is a soft cap or there are sinks."""
    asked = []

    def noted(query: Tensor, *args: object, **options: object) -> Tensor:
        asked.append((query, options["sliding_window"]))
        return prompt_attention(query, *args, **options)

    monkeypatch.setattr(attention_paged, "prompt_attention", noted)
    layers = TwoLayers(2, torch.float32)
    for rows, calls, num_tokens in (
        (BATCHES["prompts"], CALLS["window"], 193),
        (BATCHES["both"], CALLS["plain"], 66),
        (BATCHES["prompts"], CALLS["windows and cap"], 0),
        (BATCHES["prompts"], CALLS["sinks"], 0),
        (SINGLES, CALLS["plain"], 0),
    ):
        batch = token_batch(*arrays(rows), CPU)
        attention = PagedAttention(layers.pool, layers.arena, batch)
        for case, call in zip(layers.cases, calls, strict=True):
            check_layer(attention, case, rows, 8, call)
        assert [len(query) for query, _ in asked] == ([num_tokens] * 2 if num_tokens else [])
        assert not asked or [w for _, w in asked] == [call.sliding_window for call in calls]
        asked.clear()


@pytest.mark.parametrize(("kv_heads", "heads"), [(1, 1), (3, 3), (1, 7), (2, 6)])
def test_any_grouping_of_heads(kv_heads, heads) -> None:
    rows = BATCHES["both"]
    layers = TwoLayers(kv_heads, torch.float32)
    layers.forget(rows)
    for attention in both_ways(layers, token_batch(*arrays(rows), CPU), layers.pool.clone()):
        check_layer(attention, layers.cases[0], rows, heads, PLAIN)


@pytest.mark.parametrize("family", ["llama", "mistral", "opt", "gemma2", "gpt_oss"])
def test_a_model_on_the_gpus_path_yields_the_same_tokens(
    tiny: ModelBuilder, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules of transformers, whose queries, keys and values are views, as on a GPU."""
    monkeypatch.setattr(runner, "is_fusible", lambda model: False)
    unit = unit_of(tiny(family))
    prompts = ragged(unit.models[0].vocab_size, 6, seed=2)
    planned, paged = drivers(unit)[0], drivers(unit)[0]
    paged.runner._models[unit.models[0].name]._steps._forward._attention = PagedAttention
    expected = planned.run(prompts, 12, side=Side.RIGHT)
    assert [s.output for s in paged.run(prompts, 12, side=Side.RIGHT)] == [
        s.output for s in expected
    ]
