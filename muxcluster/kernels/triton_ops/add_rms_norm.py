"""Residual add and RMSNorm in one pass: a program normalises whole rows, kept in registers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from muxcluster.kernels.add_rms_norm import check_norm
from muxcluster.kernels.triton_ops.specimens.specimen import Specimen

_MAX_WIDTH = 32768  # A row of a program's registers: wider ones would not fit


@triton.jit(do_not_specialize=["num_rows"])
def _add_rms_norm(
    normed,  # [num_rows, width]
    residual,  # [num_rows, width], changed in place
    hidden,  # [num_rows, width]
    weight,  # [width]
    num_rows,
    width,
    normed_stride,
    residual_stride,
    hidden_stride,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    GEMMA: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK_WIDTH)[None, :]
    inside = (row < num_rows) & (column < width)
    dtype = normed.dtype.element_ty
    x = tl.load(hidden + row * hidden_stride + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        place = residual + row * residual_stride + column
        total = (x + tl.load(place, mask=inside, other=0.0).to(tl.float32)).to(dtype)
        tl.store(place, total, mask=inside)
        x = total.to(tl.float32)
    mean_square = tl.sum(x * x, axis=1) / width
    x = x * tl.rsqrt(mean_square + eps)[:, None]
    factor = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    if GEMMA:
        x = x * (1.0 + factor)
    else:
        x = x.to(dtype).to(tl.float32) * factor
    tl.store(normed + row * normed_stride + column, x.to(dtype), mask=inside)


def add_rms_norm(
    hidden: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor | None = None,
    gemma: bool = False,
) -> Tensor:
    """As `muxcluster.kernels.add_rms_norm.add_rms_norm`; width at most 32768."""
    check_norm(hidden, weight, residual)
    num_rows, width = hidden.shape
    if width > _MAX_WIDTH:
        raise ValueError(f"width must be at most {_MAX_WIDTH}, got {width}")
    normed = torch.empty((num_rows, width), dtype=hidden.dtype, device=hidden.device)
    if not num_rows:
        return normed
    summed = hidden if residual is None else residual
    block_rows, block_width, num_warps = _blocks(width)
    _add_rms_norm[(triton.cdiv(num_rows, block_rows),)](
        normed,
        summed,
        hidden,
        weight,
        num_rows,
        width,
        normed.stride(0),
        summed.stride(0),
        hidden.stride(0),
        eps,
        HAS_RESIDUAL=residual is not None,
        GEMMA=gemma,
        BLOCK_ROWS=block_rows,
        BLOCK_WIDTH=block_width,
        num_warps=num_warps,
    )
    return normed


def _blocks(width: int) -> tuple[int, int, int]:
    """Return (rows, columns, warps) of a program: about 16 elements per thread."""
    block_width = triton.next_power_of_2(width)
    block_rows = max(1, 2048 // block_width)
    return block_rows, block_width, min(16, max(4, block_rows * block_width // 512))


def _specimen(name: str, dtype: str, width: int, residual: bool, gemma: bool) -> Specimen:
    block_rows, block_width, num_warps = _blocks(width)
    pointers = ("normed", "residual", "hidden", "weight")
    integers = ("num_rows", "width", "normed_stride", "residual_stride", "hidden_stride")
    constants = {
        "HAS_RESIDUAL": residual,
        "GEMMA": gemma,
        "BLOCK_ROWS": block_rows,
        "BLOCK_WIDTH": block_width,
    }
    return Specimen(
        name=f"add_rms_norm {name}",
        kernel=_add_rms_norm,
        signature={
            **dict.fromkeys(pointers, f"*{dtype}"),
            **dict.fromkeys(integers, "i32"),
            "eps": "fp32",
            **dict.fromkeys(constants, "constexpr"),
        },
        constants=constants,
        divisible=frozenset((*pointers, *integers[1:])),
        num_warps=num_warps,
    )


# Llama 7B, Llama 405B, Gemma 7B, Qwen3's query norm, fp32.
SPECIMENS = (
    _specimen("bf16 4096 residual", "bf16", 4096, True, False),
    _specimen("bf16 16384 residual", "bf16", 16384, True, False),
    _specimen("bf16 3072 gemma", "bf16", 3072, True, True),
    _specimen("fp16 heads of 128", "fp16", 128, False, False),
    _specimen("fp32 8192", "fp32", 8192, False, False),
)
