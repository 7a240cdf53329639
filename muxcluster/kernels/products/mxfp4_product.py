"""Products of rows sorted by expert with weights in MXFP4; plain-torch twin of the Triton kernel.

MXFP4 is the format of OCP Microscaling Formats 1.0 that gpt-oss stores its experts in: elements of
4 bits (E2M1), of which 32 neighbours share a scale that is a power of two (E8M0).
"""

import torch
from torch import Tensor
from torch.nn.functional import linear

from muxcluster.kernels.native import experts
from muxcluster.kernels.on_gpu import triton_on_gpu
from muxcluster.kernels.rows import check_rows

BLOCK = 32  # inputs that share a scale
SCALE_BIAS = 127  # of the exponents; the last one stands for NaN

# what the 4 bits of an element stand for
_ELEMENTS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Elements of a weight in fp32 at a time: they stay in the cache until they are multiplied.
_MOST_ELEMENTS = 1 << 20


@triton_on_gpu
def mxfp4_product(inputs: Tensor, blocks: Tensor, scales: Tensor, offsets: Tensor) -> Tensor:
    """Return `inputs` times the transposed weights of their experts.

    inputs: [rows, in], those of the first expert, then those of the second, and so on.
    blocks: uint8 [experts, out, in / 2], two elements in a byte, the even input's in its lower
    half. scales: uint8 [experts, out, in / 32]. Both are contiguous.
    offsets: int64 [experts + 1], rising from 0 to rows; expert e has rows offsets[e] to
    offsets[e + 1].

    Returns a new [rows, out] of the inputs' type, accumulated in fp32 from exact weights: nothing
    but the result is rounded. On a GPU nothing waits for the device. Raises ValueError for wrong
    shapes, types or strides.
    """
    check_mxfp4(inputs, blocks, scales, offsets)
    (num_experts, num_out, _), num_in = blocks.shape, inputs.shape[1]
    wide = inputs.float().contiguous()
    product = torch.empty((len(inputs), num_out))
    num_done = 0  # rows of experts that are multiplied already
    if experts.is_available():
        num_done = experts.FEW_ROWS
        experts.product_of_few(wide, blocks, scales, offsets.contiguous(), product)
    ends = offsets.tolist()
    step = max(1, _MOST_ELEMENTS // num_in)
    for expert in range(num_experts):
        mine = slice(ends[expert], ends[expert + 1])
        if mine.stop - mine.start <= num_done:
            continue
        for first in range(0, num_out, step):
            some = slice(first, min(first + step, num_out))
            weight = widened(blocks[expert, some], scales[expert, some])
            product[mine, some] = linear(wide[mine], weight)
    return product.to(inputs.dtype)


def widened(blocks: Tensor, scales: Tensor) -> Tensor:
    """Return the elements fp32 [..., in] of blocks [..., in / 2] and scales [..., in / 32].

    Exact, as all of them are numbers of fp32.
    """
    if not blocks.is_cuda and experts.is_available():
        return experts.widened(blocks.contiguous(), scales.contiguous())
    pairs = _pairs(blocks.device)[blocks.int()].view(*scales.shape, BLOCK)
    return (pairs * _powers(scales.device)[scales.int()].unsqueeze(-1)).flatten(-2)


def check_mxfp4(inputs: Tensor, blocks: Tensor, scales: Tensor, offsets: Tensor) -> None:
    """Raise ValueError unless the arguments are what `mxfp4_product` says; reads no values."""
    check_rows("inputs", inputs)
    num_in = inputs.shape[1]
    if num_in % BLOCK:
        raise ValueError(f"inputs must have a multiple of {BLOCK} columns, got {num_in}")
    for name, each, parts in (("blocks", blocks, 2), ("scales", scales, BLOCK)):
        is_fitting = each.dim() == 3 and each.shape[2] * parts == num_in
        if each.dtype != torch.uint8 or not is_fitting or not each.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous uint8 [experts, out, {num_in // parts}], "
                f"got {each.dtype} {tuple(each.shape)} with strides {each.stride()}"
            )
    if blocks.shape[:2] != scales.shape[:2]:
        raise ValueError(f"blocks {tuple(blocks.shape)} and scales {tuple(scales.shape)}")
    if offsets.dtype != torch.int64 or offsets.shape != (len(blocks) + 1,):
        raise ValueError(
            f"offsets must be int64 [{len(blocks) + 1}], got {offsets.dtype} {tuple(offsets.shape)}"
        )


def _pairs(device: torch.device) -> Tensor:
    """Return the two elements of every byte, fp32 [256, 2]."""
    elements = torch.tensor([*_ELEMENTS, *(-each for each in _ELEMENTS)], device=device)
    byte = torch.arange(256, device=device)
    return torch.stack((elements[byte & 15], elements[byte >> 4]), dim=-1)


def _powers(device: torch.device) -> Tensor:
    """Return what every scale stands for, fp32 [256]."""
    exponents = torch.arange(256, dtype=torch.float64, device=device) - SCALE_BIAS
    powers = torch.exp2(exponents).float()
    powers[-1] = torch.nan
    return powers
