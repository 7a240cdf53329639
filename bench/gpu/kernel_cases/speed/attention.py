"""Times of paged decode and prefill attention against bandwidth, matrix rate and other kernels."""

import torch

from bench.gpu.kernel_cases.paged import Heads, Paged, paged
from bench.gpu.kernel_cases.speed.rivals import Call, contiguous, flashinfer_decode, flex, sdpa
from bench.gpu.running.run import Run
from muxcluster.kernels.attention.paged_decode import paged_decode
from muxcluster.kernels.attention.paged_prefill import paged_prefill
from muxcluster.kernels.attention.prompt_attention import prompt_attention, takes_prompts

LLAMA3_8B = Heads(32, 8, 128)
LLAMA2_7B = Heads(32, 32, 128)
LLAMA3_1B = Heads(32, 8, 64)
GEMMA2_9B = Heads(16, 8, 256)

# Rows and their length each; the first is the one claimed.
DECODE = ((64, 2048), (1, 32768), (8, 8192), (256, 512))
# New tokens of each row and how many came before; the first is the one claimed.
PREFILL = (([8192], 0), ([2048] * 4, 0), ([2048], 6144))


def decode_case(rows: int, length: int, heads: Heads) -> str:
    return f"{rows} x {length}, {heads}"


def prefill_case(news: list[int], start: int, heads: Heads) -> str:
    return f"{len(news)} x {news[0]} after {start}, {heads}"


def time_decode(run: Run) -> None:
    """One new token a row; the work is reading K and V once."""
    cases = [(rows, length, LLAMA3_8B) for rows, length in DECODE]
    cases += [(*DECODE[0], heads) for heads in (LLAMA2_7B, LLAMA3_1B, GEMMA2_9B)]
    for rows, length, heads in cases:
        _decode(run, *((2, 40) if run.tiny else (rows, length)), heads)


def _decode(run: Run, rows: int, length: int, heads: Heads) -> None:
    made = paged([length] * rows, heads, torch.bfloat16, run.device)
    query = made.query(rows)
    where = (made.pool, made.table, made.table_rows, made.lengths, made.from_right)
    scale = heads.dim**-0.5
    dense = contiguous(rows, 1, length, heads, query)
    run.time(
        "paged_decode",
        decode_case(rows, length, heads),
        lambda: paged_decode(query, *where, block_tokens=made.block_tokens, scale=scale),
        moved=rows * length * made.token_bytes + 2 * query.nbytes,
        rivals={
            "sdpa": sdpa(*dense, causal=False),
            **flashinfer_decode(rows, length, heads, query),
        },
    )


def time_prefill(run: Run) -> None:
    """Whole prompts, several at once, and a chunk that follows earlier tokens."""
    cases = [(news, start, LLAMA3_8B) for news, start in PREFILL]
    cases += [(*PREFILL[0], heads) for heads in (LLAMA3_1B, GEMMA2_9B)]
    for news, start, heads in cases:
        _prefill(run, *(([33], 16) if run.tiny else (news, start)), heads)


def _prefill(run: Run, news: list[int], start: int, heads: Heads) -> None:
    made = paged([start + new for new in news], heads, torch.bfloat16, run.device)
    query = made.query(sum(news))
    offsets = torch.tensor([0, *news]).cumsum(0).to(torch.int32).to(run.device)
    starts = torch.full((len(news),), start, dtype=torch.int32, device=run.device)
    where = (made.pool, made.table, made.table_rows, offsets, starts, made.from_right)
    scale = heads.dim**-0.5
    run.time(
        "paged_prefill",
        prefill_case(news, start, heads),
        lambda: paged_prefill(query, *where, block_tokens=made.block_tokens, scale=scale),
        flops=sum(attention_flops(new, start, heads) for new in news),
        rivals=_prefill_rivals(run, news, start, made),
    )


def _prefill_rivals(run: Run, news: list[int], start: int, made: Paged) -> dict[str, Call]:
    """Only where they do the same work: whole prompts of one length."""
    if start:
        return {}
    like = made.query(1)
    dense = contiguous(len(news), news[0], news[0], made.heads, like)
    rivals = {"sdpa": sdpa(*dense, causal=True)}
    if len(news) == 1 and made.heads == LLAMA3_8B and run.device.type == "cuda":
        rivals["flex"] = flex(*dense)
    return rivals


def time_prompts(run: Run) -> None:
    """Whole prompts by torch's FlashAttention, as the engine runs them, beside our kernel."""
    for news, start in PREFILL:
        if not start:
            _prompts(run, [33] if run.tiny else news, LLAMA3_8B)


def _prompts(run: Run, news: list[int], heads: Heads) -> None:
    made = paged(news, heads, torch.bfloat16, run.device)
    query, case = made.query(sum(news)), prefill_case(news, 0, heads)
    # As a merged product leaves them: queries, keys and values side by side.
    joint = torch.randn(len(query), heads.query + 2 * heads.kv, heads.dim, device=query.device)
    parts = torch.split(joint.to(query), [heads.query, heads.kv, heads.kv], dim=1)
    scale = heads.dim**-0.5
    if not takes_prompts(parts[0], parts[1], scale, None):
        run.keep({"kernel": "prompt_attention", "case": case, "note": "not used here"}, {})
        return
    offsets = torch.tensor([0, *news]).cumsum(0).to(torch.int32).to(query.device)
    starts = torch.zeros(len(news), dtype=torch.int32, device=query.device)
    where = (made.pool, made.table, made.table_rows, offsets, starts, made.from_right)
    run.time(
        "prompt_attention",
        case,
        lambda: prompt_attention(*parts, offsets, max(news), scale=scale),
        flops=sum(attention_flops(new, 0, heads) for new in news),
        rivals={
            "paged_prefill": lambda: paged_prefill(
                query, *where, block_tokens=made.block_tokens, scale=scale
            )
        },
    )


def attention_flops(new: int, start: int, heads: Heads) -> float:
    """Operations of `new` causal queries after `start` tokens: both products, seen keys only."""
    seen = new * start + new * (new + 1) // 2
    return 4.0 * heads.query * heads.dim * seen


PARTS = {"decode": time_decode, "prefill": time_prefill, "prompts": time_prompts}
