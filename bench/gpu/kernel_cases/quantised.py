"""Products with quantised weights: correct against float64, and their times."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from bench.gpu.running.run import Run, relative_error
from muxcluster.kernels.products.mxfp4_product import mxfp4_product, widened
from muxcluster.kernels.products.quantised_product import quantised_product, unpacked

ALLOWED = {torch.float16: 1e-3, torch.bfloat16: 8e-3}
KINDS = ("int8", "fp8", "int4")
_ROWS = (1, 16, 17, 64, 300)
# Outputs and inputs: Llama-3-8B's up projection; outputs that no tile divides; tiny ones.
_UP, _ODD, _TINY = (14336, 4096), (1000, 1152), (72, 256)
_GROUP = 128


class Weight(NamedTuple):
    """Arguments of the product."""

    values: Tensor
    scales: Tensor
    zeros: Tensor | None
    group: int


def weight(run: Run, kind: str, num_out: int, num_in: int) -> Weight:
    """Random values; zeros with 4 bits; one scale a row with 8."""
    group = _GROUP if kind == "int4" else num_in
    scales = torch.rand(num_out, num_in // group, device=run.device) * 0.01 + 0.001
    if kind == "int4":
        size = (num_out, num_in // 2)
        values = torch.randint(0, 256, size, device=run.device, dtype=torch.uint8)
        return Weight(values, scales, torch.randint_like(scales, 0, 16), group)
    if kind == "fp8":
        wide = torch.randn(num_out, num_in, device=run.device) * 50
        return Weight(wide.to(torch.float8_e4m3fn), scales, None, group)
    size = (num_out, num_in)
    values = torch.randint(-127, 128, size, device=run.device, dtype=torch.int8)
    return Weight(values, scales, None, group)


def check_quantised_product(run: Run) -> None:
    """Every kind; tiles of all sizes, the last ones not full."""
    for dtype, allowed in ALLOWED.items():
        for kind in KINDS:
            for rows in _ROWS:
                call = partial(_error, run, dtype, kind, rows, *(_TINY if run.tiny else _ODD))
                run.check("quantised_product", f"{dtype} {kind} {rows} rows", call, allowed)


def _error(run: Run, dtype: torch.dtype, kind: str, rows: int, num_out: int, num_in: int) -> float:
    found = weight(run, kind, num_out, num_in)
    inputs = torch.randn(rows, num_in, device=run.device).to(dtype)
    grouped = unpacked(found.values).double().view(num_out, -1, found.group)
    zeros = 0.0 if found.zeros is None else found.zeros.double().unsqueeze(-1)
    exact = (grouped - zeros) * found.scales.double().unsqueeze(-1)
    expected = inputs.double() @ exact.view(num_out, num_in).T
    return relative_error(quantised_product(inputs, *found), expected)


def check_mxfp4_product(run: Run) -> None:
    """Experts of no row, of few and of many."""
    for dtype, allowed in ALLOWED.items():
        for counts in ([0, 1, 0, 3], [40, 0, 33, 1], [200, 65, 0, 7]):
            call = partial(_experts_error, run, dtype, counts)
            run.check("mxfp4_product", f"{dtype} experts of {counts} rows", call, allowed)


def _experts_error(run: Run, dtype: torch.dtype, counts: list[int]) -> float:
    num_out, num_in = _TINY if run.tiny else _ODD
    size = (len(counts), num_out, num_in // 2)
    blocks = torch.randint(0, 256, size, device=run.device, dtype=torch.uint8)
    size = (len(counts), num_out, num_in // 32)
    scales = torch.randint(115, 125, size, device=run.device, dtype=torch.uint8)
    inputs = torch.randn(sum(counts), num_in, device=run.device).to(dtype)
    offsets = torch.tensor([0, *counts], device=run.device).cumsum(0)
    exact = widened(blocks, scales).double()
    parts = zip(inputs.double().split(counts), exact, strict=True)
    expected = torch.cat([part @ weight.T for part, weight in parts])
    return relative_error(mxfp4_product(inputs, blocks, scales, offsets), expected)


def time_quantised_product(run: Run) -> None:
    """Against the product with the dense weight in bf16, as large a step as a decode has."""
    num_out, num_in = _TINY if run.tiny else _UP
    dense = torch.randn(num_out, num_in, device=run.device).bfloat16()
    for kind in KINDS:
        found = weight(run, kind, num_out, num_in)
        kept = [each for each in found[:3] if each is not None]
        for rows in (5,) if run.tiny else (1, 16, 64, 512):
            inputs = torch.randn(rows, num_in, device=run.device).bfloat16()
            run.time(
                "quantised_product",
                f"{kind} {rows} rows",
                partial(quantised_product, inputs, *found),
                moved=sum(each.nbytes for each in kept),
                flops=2 * rows * dense.numel(),
                rivals={"bf16": partial(linear, inputs, dense)},
            )


CORRECT = {
    "quantised_product": check_quantised_product,
    "mxfp4_product": check_mxfp4_product,
}
SPEED = {"quantised": time_quantised_product}
