"""Times of prefix-shared attention at the shapes of BatchLLM's evaluation, and its crossover."""

from collections.abc import Callable

import torch
from torch import Tensor

from bench.gpu.kernel_cases.paged import Heads, Paged, paged
from bench.gpu.kernel_cases.speed.attention import LLAMA3_8B
from bench.gpu.running.run import Run
from muxcluster.kernels.attention.paged_decode import paged_decode
from muxcluster.kernels.attention.paged_prefill import paged_prefill
from muxcluster.kernels.attention.prefix_attention import prefix_attention

# Tokens of the shared prefix, and of each row's own text.
SHAPES = ((256, 2048), (2048, 256), (4096, 128), (1024, 1024), (8192, 256))
DECODES = (32, 256)
CROSSOVER_PREFIXES = (128, 256, 512, 1024, 2048)
CROSSOVER_DISTINCT = 256
NUM_CHUNKS = 7
CHUNK_TOKENS = 256


def prefix_case(decodes: int, chunks: int, prefix: int, distinct: int) -> str:
    beside = f"{chunks} chunks + " if chunks else ""
    return f"{beside}{decodes} decodes, {prefix}/{distinct}"


def time_prefix(run: Run) -> None:
    """Decodes alone against paged decode; with chunks against paged prefill of the same rows."""
    heads = LLAMA3_8B
    for decodes in DECODES:
        for prefix, distinct in SHAPES:
            _time(run, decodes, 0, prefix, distinct, heads)
    for prefix, distinct in SHAPES[:3]:
        _time(run, DECODES[1], NUM_CHUNKS, prefix, distinct, heads)
    for decodes in DECODES:
        for prefix in CROSSOVER_PREFIXES:
            if (prefix, CROSSOVER_DISTINCT) not in SHAPES:
                _time(run, decodes, 0, prefix, CROSSOVER_DISTINCT, heads)


def _time(run: Run, decodes: int, chunks: int, prefix: int, distinct: int, heads: Heads) -> None:
    if run.tiny:
        decodes, chunks, prefix, distinct = 3, min(chunks, 1), 32, 300
    rows = decodes + chunks
    news = [CHUNK_TOKENS] * chunks + [1] * decodes
    distinct = max(distinct, max(news))
    made = paged(
        [prefix + distinct] * rows, heads, torch.bfloat16, run.device, shared_tokens=prefix
    )
    query = made.query(sum(news))
    offsets = torch.tensor([0, *news]).cumsum(0).to(torch.int32).to(run.device)
    shared = torch.tensor([prefix], dtype=torch.int32, device=run.device)
    group = torch.tensor([0, rows], dtype=torch.int32, device=run.device)
    run.time(
        "prefix_attention",
        prefix_case(decodes, chunks, prefix, distinct),
        lambda: prefix_attention(
            query,
            made.pool,
            made.table,
            made.table_rows,
            made.lengths,
            made.from_right,
            group,
            shared,
            block_tokens=made.block_tokens,
            scale=heads.dim**-0.5,
            query_offsets=offsets if chunks else None,
        ),
        moved=(prefix + rows * distinct) * made.token_bytes + 2 * query.nbytes,
        rivals={"paged": _paged(made, query, offsets, news)},
    )


def _paged(made: Paged, query: Tensor, offsets: Tensor, news: list[int]) -> Callable[[], Tensor]:
    """The same rows without knowing of the prefix, whose blocks the L2 cache may hold."""
    how = {"block_tokens": made.block_tokens, "scale": made.heads.dim**-0.5}
    if max(news) == 1:
        where = (made.pool, made.table, made.table_rows, made.lengths, made.from_right)
        return lambda: paged_decode(query, *where, **how)
    starts = made.lengths - torch.tensor(news, dtype=torch.int32, device=query.device)
    where = (made.pool, made.table, made.table_rows, offsets, starts, made.from_right)
    return lambda: paged_prefill(query, *where, **how)


PARTS = {"prefix": time_prefix}
