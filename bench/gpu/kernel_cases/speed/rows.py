"""Times of the row kernels against copy bandwidth and PyTorch's own operations."""

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from bench.gpu.kernel_cases.paged import paged
from bench.gpu.kernel_cases.speed.attention import LLAMA3_8B
from bench.gpu.running.run import Run
from muxcluster.kernels.add_rms_norm import add_rms_norm
from muxcluster.kernels.kv_write import kv_write
from muxcluster.kernels.rotary import rotary
from muxcluster.kernels.silu_mul import silu_mul
from muxcluster.kernels.slot_copy import slot_copy

TOKENS = (8192, 64)  # A large prefill and a decode step
HIDDEN = 4096
INNER = 14336
# Of one layer with eight KV heads: 128 MiB, and what one preemption may move.
SLOT_COPY_TOKENS = (32_768, 512)


def time_rows(run: Run) -> None:
    """Norm, activation, rotary and KV write of Llama-3-8B's layers in bf16."""
    for tokens in (5,) if run.tiny else TOKENS:
        _norm(run, tokens)
        _activation(run, tokens)
        _rotary(run, tokens)
        _kv_write(run, tokens)


def _norm(run: Run, tokens: int) -> None:
    hidden, residual = (_random(run, tokens, HIDDEN) for _ in range(2))
    weight = _random(run, 1, HIDDEN)[0]
    # The sum would grow without end over the repetitions.
    hidden.mul_(1e-3)

    def plain() -> Tensor:
        residual.add_(hidden)
        return rms_norm(residual, (HIDDEN,), weight, 1e-5)

    run.time(
        "add_rms_norm",
        f"{tokens} x {HIDDEN}",
        lambda: add_rms_norm(hidden, weight, 1e-5, residual),
        moved=4 * hidden.nbytes,
        rivals={"torch": plain},
    )


def _activation(run: Run, tokens: int) -> None:
    gate, up = (_random(run, tokens, INNER) for _ in range(2))
    run.time(
        "silu_mul",
        f"{tokens} x {INNER}",
        lambda: silu_mul(gate, up),
        moved=3 * gate.nbytes,
        rivals={"torch": lambda: silu(gate) * up},
    )


def _rotary(run: Run, tokens: int) -> None:
    heads = LLAMA3_8B
    query = _random(run, tokens, heads.query * heads.dim).view(tokens, -1, heads.dim)
    key = _random(run, tokens, heads.kv * heads.dim).view(tokens, -1, heads.dim)
    angles = torch.rand(tokens, heads.dim, device=run.device)
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()

    def plain() -> tuple[Tensor, ...]:
        wide_cos, wide_sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return tuple(each * wide_cos + _half_turned(each) * wide_sin for each in (query, key))

    run.time(
        "rotary",
        f"{tokens} tokens, {heads}",
        lambda: rotary(query, key, cos, sin),
        # Half of each table's columns are read.
        moved=2 * (query.nbytes + key.nbytes) + (cos.nbytes + sin.nbytes) // 2,
        rivals={"torch": plain},
    )


def _half_turned(tensor: Tensor) -> Tensor:
    first, second = tensor.chunk(2, -1)
    return torch.cat((-second, first), -1)


def _kv_write(run: Run, tokens: int) -> None:
    heads = LLAMA3_8B
    made = paged([tokens], heads, torch.bfloat16, run.device)
    key, value = (
        _random(run, tokens, heads.kv * heads.dim).view(tokens, heads.kv, heads.dim)
        for _ in range(2)
    )
    positions = torch.arange(tokens, dtype=torch.int32, device=run.device)
    table_rows = torch.zeros_like(positions)
    where = (made.table, table_rows, positions, made.from_right, made.block_tokens)
    cache = torch.empty(2, tokens, heads.kv, heads.dim, dtype=key.dtype, device=run.device)
    order = torch.randperm(tokens, device=run.device)

    def plain() -> None:
        cache[0].index_copy_(0, order, key)
        cache[1].index_copy_(0, order, value)

    run.time(
        "kv_write",
        f"{tokens} tokens, {heads}",
        lambda: kv_write(made.pool, key, value, *where),
        moved=4 * key.nbytes,
        rivals={"torch index_copy": plain},
    )


def time_slot_copy(run: Run) -> None:
    """A layer's blocks of some sequences to staging and back, a run for each block."""
    for tokens in (100,) if run.tiny else SLOT_COPY_TOKENS:
        made = paged([tokens], LLAMA3_8B, torch.bfloat16, run.device)
        blocks = made.table.flatten()
        slot_bytes, size = 2 * LLAMA3_8B.dim, made.block_tokens
        firsts = torch.arange(len(blocks), device=run.device, dtype=torch.int32) * size
        counts = torch.full_like(firsts, size)
        staging = torch.empty(
            len(blocks) * size, 2 * slot_bytes, dtype=torch.uint8, device=run.device
        )
        whole = torch.empty(len(blocks), made.pool.shape[1], dtype=torch.uint8, device=run.device)
        gather = torch.stack((blocks * size, firsts, counts), 1).contiguous()
        scatter = torch.stack((firsts, blocks * size, counts), 1).contiguous()
        _time_copy(run, f"{tokens} tokens to staging", made.pool, staging, gather, size, 1)
        _time_copy(run, f"{tokens} tokens from staging", staging, made.pool, scatter, 1, size)
        # Other work of the same bytes: whole blocks, which need no rearranging.
        run.time(
            "slot_copy",
            f"{tokens} tokens, torch's index_select of whole blocks",
            lambda whole=whole, pool=made.pool, ids=blocks: torch.index_select(
                pool, 0, ids, out=whole
            ),
            moved=2 * whole.nbytes,
        )


def _time_copy(
    run: Run, case: str, source: Tensor, target: Tensor, runs: Tensor, *sizes: int
) -> None:
    source_tokens, destination_tokens = sizes
    run.time(
        "slot_copy",
        case,
        lambda: slot_copy(
            target,
            source,
            runs,
            slot_bytes=2 * LLAMA3_8B.dim,
            destination_tokens=destination_tokens,
            source_tokens=source_tokens,
        ),
        moved=2 * min(source.nbytes, target.nbytes),
    )


def _random(run: Run, rows: int, width: int) -> Tensor:
    return torch.randn(rows, width, device=run.device).bfloat16()


PARTS = {"rows": time_rows, "slots": time_slot_copy}
