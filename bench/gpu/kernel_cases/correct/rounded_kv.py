"""Keys and values in 8 bits: the kernels against their plain-torch twins on the same pool."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.gpu.kernel_cases.paged import Heads
from bench.gpu.running.run import Run, relative_error
from muxcluster.kernels.attention.paged_decode import paged_decode
from muxcluster.kernels.attention.paged_prefill import paged_prefill
from muxcluster.kernels.attention.prefix_attention import prefix_attention
from muxcluster.kernels.kv_write import kv_write
from muxcluster.kernels.layout import slot_bytes

ALLOWED = {torch.float16: 3e-3, torch.bfloat16: 2e-2}
HEADS = (Heads(8, 2, 128), Heads(4, 4, 64), Heads(6, 2, 80))
KV_DTYPES = (torch.int8, torch.float8_e4m3fn)
_BLOCK_BYTES = 2 * 2 * 16 * 128
# Of rows: the first two share their first 130 tokens' whole blocks.
_LENGTHS = (145, 260, 33, 1, 700)


class Stored(NamedTuple):
    """Sequences as the kernels take them; `new` is what was written, K and V."""

    pool: Tensor
    table: Tensor
    table_rows: Tensor  # of every token
    positions: Tensor
    from_right: Tensor
    new: Tensor
    block_tokens: int

    def moved(self, device: str) -> "Stored":
        """A copy there."""
        return Stored(*(each.to(device) for each in self[:-1]), self.block_tokens)


# Attention of queries to what is stored, on their device.
Call = Callable[[Tensor, Stored, torch.dtype], Tensor]


def stored(run: Run, heads: Heads, dtype: torch.dtype, kv_dtype: torch.dtype) -> Stored:
    """Random tokens of every second side; nothing is written yet, the pool is NaN or 255."""
    block_tokens = _BLOCK_BYTES // 2 // slot_bytes(kv_dtype, heads.dim)
    columns = -(-max(_LENGTHS) // block_tokens)
    num_blocks = len(_LENGTHS) * heads.kv * columns
    pool = torch.full((num_blocks, _BLOCK_BYTES), 0xFF, dtype=torch.uint8, device=run.device)
    table = torch.randperm(num_blocks).to(torch.int32).view(len(_LENGTHS), heads.kv, columns)
    positions = torch.cat([torch.arange(length) for length in _LENGTHS])
    rows = torch.arange(len(_LENGTHS)).repeat_interleave(torch.tensor(_LENGTHS))
    sides = torch.arange(len(_LENGTHS)) % 2 == 1
    new = torch.randn(2, len(positions), heads.kv, heads.dim).to(dtype)
    return Stored(pool.cpu(), table, rows, positions, sides, new, block_tokens).moved(run.device)


def check_rounded_kv(heads: Heads, run: Run) -> None:
    """What is written, then all ways to attend to it."""
    for dtype, allowed in ALLOWED.items():
        for kv_dtype in KV_DTYPES:
            case = f"{dtype} {kv_dtype} {heads}"
            made = stored(run, heads, dtype, kv_dtype)
            written = partial(_written, made, kv_dtype)
            # A rounding in the middle of two numbers may fall either way.
            run.check("rounded_kv write", case, written, 1e-3)
            for name, call in (("decode", _decode), ("prefill", _prefill), ("prefix", _prefix)):
                attended = partial(_attended, call, made, heads, dtype, kv_dtype)
                run.check(f"rounded_kv {name}", case, attended, allowed)


def _written(made: Stored, kv_dtype: torch.dtype) -> float:
    """Share of bytes that differ from the twin's; the pool of `made` is written."""
    twin = made.moved("cpu")
    for each in (made, twin):
        kv_write(
            each.pool,
            *each.new,
            each.table,
            each.table_rows,
            each.positions,
            each.from_right,
            each.block_tokens,
            kv_dtype=kv_dtype,
        )
    wrong = (made.pool.cpu() != twin.pool).sum()
    return float(wrong / made.new.numel())


def _attended(
    call: Call, made: Stored, heads: Heads, dtype: torch.dtype, kv_dtype: torch.dtype
) -> float:
    query = torch.randn(sum(_LENGTHS), heads.query, heads.dim).to(dtype)
    found = call(query.to(made.pool.device), made, kv_dtype)
    return relative_error(found.cpu(), call(query.float(), made.moved("cpu"), kv_dtype))


def _decode(query: Tensor, made: Stored, kv_dtype: torch.dtype) -> Tensor:
    rows, lengths = _rows(query)
    where = (made.pool, made.table, rows, lengths, made.from_right)
    return paged_decode(query[: len(_LENGTHS)], *where, **_how(made, kv_dtype))


def _prefill(query: Tensor, made: Stored, kv_dtype: torch.dtype) -> Tensor:
    rows, lengths = _rows(query)
    offsets = torch.tensor([0, *_LENGTHS], device=query.device).cumsum(0)
    where = (made.pool, made.table, rows, offsets, torch.zeros_like(lengths), made.from_right)
    return paged_prefill(query, *where, **_how(made, kv_dtype))


def _prefix(query: Tensor, made: Stored, kv_dtype: torch.dtype) -> Tensor:
    """The first two rows read the first one's first block for both, the others share nothing."""
    rows, lengths = _rows(query)
    groups = torch.tensor([0, 2, len(_LENGTHS)], device=query.device)
    shared = torch.tensor([made.block_tokens, 0], device=query.device)
    where = (made.pool, made.table, rows, lengths, made.from_right, groups, shared)
    return prefix_attention(query[: len(_LENGTHS)], *where, **_how(made, kv_dtype))


def _rows(query: Tensor) -> tuple[Tensor, Tensor]:
    rows = torch.arange(len(_LENGTHS), device=query.device)
    return rows, torch.tensor(_LENGTHS, device=query.device)


def _how(made: Stored, kv_dtype: torch.dtype) -> dict[str, Any]:
    return {"block_tokens": made.block_tokens, "scale": 0.1, "kv_dtype": kv_dtype}


PARTS = {f"rounded_kv.{heads.dim}": partial(check_rounded_kv, heads) for heads in HEADS}
