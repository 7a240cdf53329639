"""Kernels that must not ship: one spills, one asks for too much shared memory, one is no kernel.

Imported as a module of `muxcluster.kernels.triton_ops`, or by itself.
"""

import triton
import triton.language as tl

from muxcluster.kernels.triton_ops.specimens.specimen import Specimen


@triton.jit
def row_sums(out, rows, stride, WIDTH: tl.constexpr):
    """A row a thread block, in registers; far too many for one warp."""
    column = tl.arange(0, WIDTH)
    row = tl.load(rows + tl.program_id(0) * stride + column).to(tl.float32)
    total = tl.sum(row, axis=0)
    tl.store(out + tl.program_id(0) * stride + column, row / total)


@triton.jit
def product(out, a, b, a_stride, b_stride, depth, SIDE: tl.constexpr, DEPTH: tl.constexpr):
    """One tile of a matrix product, its loads pipelined."""
    side, inner = tl.arange(0, SIDE), tl.arange(0, DEPTH)
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for start in range(0, depth, DEPTH):
        left = tl.load(a + side[:, None] * a_stride + start + inner[None, :])
        right = tl.load(b + (start + inner[:, None]) * b_stride + side[None, :])
        total = tl.dot(left, right, total)
    tl.store(out + side[:, None] * SIDE + side[None, :], total)


@triton.jit
def nonsense(out, WIDTH: tl.constexpr):
    """Stores to a name that is not there."""
    tl.store(nowhere + tl.arange(0, WIDTH), 0.0)  # noqa: F821 (the fault)


def sums_of(width: int) -> Specimen:
    """One warp normalises rows of `width`."""
    return Specimen(
        name=f"row_sums {width}",
        kernel=row_sums,
        signature={"out": "*fp32", "rows": "*bf16", "stride": "i32", "WIDTH": "constexpr"},
        constants={"WIDTH": width},
        divisible=frozenset({"out", "rows", "stride"}),
        num_warps=1,
    )


def product_of(num_stages: int, divisible: bool = True) -> Specimen:
    """128 x 128 by steps of 128: each stage holds 64 KiB."""
    pointers, integers = ("out", "a", "b"), ("a_stride", "b_stride", "depth")
    return Specimen(
        name=f"product {num_stages}",
        kernel=product,
        signature={
            "out": "*fp32",
            "a": "*bf16",
            "b": "*bf16",
            **dict.fromkeys(integers, "i32"),
            **dict.fromkeys(("SIDE", "DEPTH"), "constexpr"),
        },
        constants={"SIDE": 128, "DEPTH": 128},
        divisible=frozenset((*pointers, *integers) if divisible else ()),
        num_stages=num_stages,
    )


NONSENSE = Specimen(
    "nonsense", nonsense, {"out": "*fp32", "WIDTH": "constexpr"}, {"WIDTH": 8}, frozenset()
)
SPECIMENS = (sums_of(8192), NONSENSE)
