"""Attention kernels against float64 on small cases: every head width, both sides, ragged."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.gpu.kernel_cases.correct.dense import dense_attention
from bench.gpu.kernel_cases.paged import Heads, Paged, paged
from bench.gpu.running.run import Run, relative_error
from muxcluster.kernels.attention.paged_decode import paged_decode
from muxcluster.kernels.attention.paged_prefill import paged_prefill
from muxcluster.kernels.attention.prefix_attention import prefix_attention
from muxcluster.kernels.attention.prompt_attention import prompt_attention, takes_prompts
from muxcluster.kernels.kv_write import kv_write

# Relative errors: rounding of the inputs' type alone gives a tenth of this.
ALLOWED = {torch.float16: 3e-3, torch.bfloat16: 2e-2}

HEADS = (Heads(8, 2, 128), Heads(4, 4, 64), Heads(8, 1, 256), Heads(6, 2, 80), Heads(4, 2, 96))
Options = dict[str, Any]
OPTIONS: tuple[Options, ...] = ({}, {"sliding_window": 20}, {"soft_cap": 10.0}, {"sinks": True})


def check_kv_write(heads: Heads, run: Run) -> None:
    """Every token at its place, and no byte elsewhere changed."""
    for dtype in ALLOWED:
        run.check("kv_write", f"{dtype} {heads}", partial(_kv_write, run, dtype, heads), 0.0)


def _kv_write(run: Run, dtype: torch.dtype, heads: Heads) -> float:
    lengths = [1, 15, 16, 17, 100]
    made = paged(lengths, heads, dtype, run.device, mixed_sides=True)
    positions = torch.cat([torch.arange(length) for length in lengths]).to(run.device)
    table_rows = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).to(run.device)
    new = torch.randn(2, len(positions), heads.kv, heads.dim, device=run.device).to(dtype)
    before = made.pool.clone()
    kv_write(made.pool, *new, made.table, table_rows, positions, made.from_right, made.block_tokens)
    stored = torch.cat([made.dense(row) for row in range(len(lengths))], dim=2)
    wrong = int((stored != new.transpose(1, 2)).sum())
    touched = int((made.pool.view(torch.int16) != before.view(torch.int16)).sum())
    return float(wrong + max(0, touched - new.numel()))


def check_paged_decode(heads: Heads, run: Run) -> None:
    """Rows of 0, 1 and odd lengths."""
    for dtype, allowed in ALLOWED.items():
        for options in OPTIONS:
            case = f"{dtype} {heads} {options or ''}"
            call = partial(_paged_decode, run, dtype, heads, options)
            run.check("paged_decode", case, call, allowed)


def _paged_decode(run: Run, dtype: torch.dtype, heads: Heads, options: Options) -> float:
    lengths = [0, 1, 16, 17, 33, 700]
    made = paged(lengths, heads, dtype, run.device, mixed_sides=True)
    query = made.query(len(lengths))
    options = _given(options, made)
    result = paged_decode(query, *_where(made), **_how(made), **options)
    if result[0].any():
        raise ValueError("a row of length 0 is not zeros")
    rows = range(1, len(lengths))
    expected = [dense_attention(query[row : row + 1], made, row, **options) for row in rows]
    return relative_error(result[1:], torch.cat(expected))


def check_paged_prefill(heads: Heads, run: Run) -> None:
    """Whole prompts and chunks that follow earlier tokens."""
    for dtype, allowed in ALLOWED.items():
        for options in OPTIONS:
            case = f"{dtype} {heads} {options or ''}"
            call = partial(_paged_prefill, run, dtype, heads, options)
            run.check("paged_prefill", case, call, allowed)


def _paged_prefill(run: Run, dtype: torch.dtype, heads: Heads, options: Options) -> float:
    lengths, starts = [1, 17, 128, 200, 333], [0, 0, 0, 150, 16]
    made = paged(lengths, heads, dtype, run.device, mixed_sides=True)
    news = [length - start for length, start in zip(lengths, starts, strict=True)]
    query = made.query(sum(news))
    options = _given(options, made)
    result = paged_prefill(
        query,
        made.pool,
        made.table,
        made.table_rows,
        _offsets(news, run.device),
        torch.tensor(starts, dtype=torch.int32, device=run.device),
        made.from_right,
        **_how(made),
        **options,
    )
    parts = query.split(news)
    expected = [dense_attention(part, made, row, **options) for row, part in enumerate(parts)]
    return relative_error(result, torch.cat(expected))


def check_prompt_attention(heads: Heads, run: Run) -> None:
    """Whole prompts; where torch's kernel is not used here, a row that says so and no check."""
    for dtype, allowed in ALLOWED.items():
        for window in (None, 20):
            case = f"{dtype} {heads} window {window}"
            made = paged([1, 17, 128, 200, 333], heads, dtype, run.device, mixed_sides=True)
            query, keys = made.query(679), made.dense(0)[0].transpose(0, 1)
            if not takes_prompts(query, keys, heads.dim**-0.5, None):
                run.keep({"kernel": "prompt_attention", "case": case, "note": "not used here"}, {})
                continue
            call = partial(_prompt_attention, made, query, window)
            run.check("prompt_attention", case, call, allowed)


def _prompt_attention(made: Paged, query: Tensor, window: int | None) -> float:
    lengths = made.lengths.tolist()
    rows = range(len(lengths))
    key, value = torch.cat([made.dense(row) for row in rows], dim=2).transpose(1, 2).contiguous()
    offsets = _offsets(lengths, query.device)
    scale = made.heads.dim**-0.5
    result = prompt_attention(
        query, key, value, offsets, max(lengths), scale=scale, sliding_window=window
    )
    parts = query.split(lengths)
    expected = [dense_attention(parts[row], made, row, sliding_window=window) for row in rows]
    return relative_error(result, torch.cat(expected))


def check_prefix_attention(heads: Heads, run: Run) -> None:
    """Groups with and without a shared prefix; decodes alone, and beside prompt chunks."""
    for dtype, allowed in ALLOWED.items():
        for options in ({}, {"soft_cap": 10.0}, {"sinks": True}):
            for chunks in (False, True):
                case = f"{dtype} {heads} {options or ''} {'with chunks' if chunks else ''}"
                call = partial(_prefix_attention, run, dtype, heads, options, chunks)
                run.check("prefix_attention", case, call, allowed)


def _prefix_attention(
    run: Run, dtype: torch.dtype, heads: Heads, options: Options, chunks: bool
) -> float:
    lengths = [145, 160, 301, 144 + 96]
    made = paged(lengths, heads, dtype, run.device, shared_tokens=144, mixed_sides=True)
    # The last row is a group of its own: it shares nothing, though its first blocks are the same.
    shared = 144 // made.block_tokens * made.block_tokens
    news = [1, 16, 40, 1] if chunks else [1] * 4
    query = made.query(sum(news))
    options = _given(options, made)
    result = prefix_attention(
        query,
        *_where(made),
        torch.tensor([0, 3, 4], dtype=torch.int32, device=run.device),
        torch.tensor([shared, 0], dtype=torch.int32, device=run.device),
        **_how(made),
        **options,
        query_offsets=_offsets(news, run.device) if chunks else None,
    )
    parts = query.split(news)
    expected = [dense_attention(part, made, row, **options) for row, part in enumerate(parts)]
    return relative_error(result, torch.cat(expected))


def _given(options: Options, made: Paged) -> Options:
    """The options, with numbers for sinks: some take hardly any of the weights, some nearly all."""
    if "sinks" not in options:
        return options
    sinks = torch.linspace(-4, 9, made.heads.query, device=made.pool.device)
    return {**options, "sinks": sinks.to(made.dtype)}


def _where(made: Paged) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return made.pool, made.table, made.table_rows, made.lengths, made.from_right


def _how(made: Paged) -> dict[str, float]:
    return {"block_tokens": made.block_tokens, "scale": made.heads.dim**-0.5}


def _offsets(counts: list[int], device: torch.device) -> Tensor:
    ends = torch.tensor([0, *counts]).cumsum(0)
    return ends.to(torch.int32).to(device)


_CHECKS = {
    "kv_write": check_kv_write,
    "paged_decode": check_paged_decode,
    "paged_prefill": check_paged_prefill,
    "prompt_attention": check_prompt_attention,
    "prefix_attention": check_prefix_attention,
}

# A part for each head width: each case is compiled for itself, which takes seconds.
PARTS = {
    f"{name}.{heads.dim}": partial(check, heads)
    for name, check in _CHECKS.items()
    for heads in HEADS
}
