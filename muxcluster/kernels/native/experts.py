"""Weights of experts in MXFP4, multiplied and widened by the C++ kernels."""

import logging
from ctypes import CDLL, c_int, c_int64, c_void_p
from functools import lru_cache

import torch
from torch import Tensor

from muxcluster.kernels.native.build import library

logger = logging.getLogger(__name__)

# Rows of an expert up to which its weight is widened in registers: with more, that is done once for
# all of them, and a product of matrices reads it from memory.
FEW_ROWS = 16

_POINTER = c_void_p


def is_available() -> bool:
    """Return whether the kernels can be had here."""
    return _library() is not None


def widened(blocks: Tensor, scales: Tensor) -> Tensor:
    """As `mxfp4_product.widened`, of contiguous tensors on the CPU."""
    found = _library()
    assert found is not None
    return _widened(found, blocks, scales)


def product_of_few(
    inputs: Tensor, blocks: Tensor, scales: Tensor, offsets: Tensor, product: Tensor
) -> None:
    """Fill the rows of `product` that are of experts with at most FEW_ROWS rows.

    Arguments as of `mxfp4_product`; inputs and product fp32 and contiguous, all on the CPU.
    """
    found = _library()
    assert found is not None
    _multiply(found, inputs, blocks, scales, offsets, product)


def _widened(found: CDLL, blocks: Tensor, scales: Tensor) -> Tensor:
    num_in = 2 * blocks.shape[-1]
    wide = torch.empty((*blocks.shape[:-1], num_in))
    num_rows = wide.numel() // num_in
    found.mux_mxfp4_widen(blocks.data_ptr(), scales.data_ptr(), num_rows, num_in, wide.data_ptr())
    return wide


def _multiply(
    found: CDLL, inputs: Tensor, blocks: Tensor, scales: Tensor, offsets: Tensor, product: Tensor
) -> None:
    num_experts, num_out, half = blocks.shape
    found.mux_mxfp4_product(
        blocks.data_ptr(),
        scales.data_ptr(),
        num_experts,
        num_out,
        2 * half,
        offsets.data_ptr(),
        FEW_ROWS,
        inputs.data_ptr(),
        product.data_ptr(),
        torch.get_num_threads(),
    )


@lru_cache
def _library() -> CDLL | None:
    found = library()
    if found is None:
        return None
    found.mux_mxfp4_widen.argtypes = (_POINTER, _POINTER, c_int64, c_int64, _POINTER)
    found.mux_mxfp4_product.argtypes = (
        _POINTER, _POINTER, c_int64, c_int64, c_int64, _POINTER, c_int64, _POINTER, _POINTER, c_int,
    )  # fmt: skip
    for name in ("mux_mxfp4_widen", "mux_mxfp4_product"):
        getattr(found, name).restype = None
    if not _is_right(found):
        logger.warning("native kernels: MXFP4 is wrong on this machine; its products are torch's")
        return None
    return found


@torch.no_grad()
def _is_right(found: CDLL) -> bool:
    """Return whether every element and sums of some are what the format says."""
    codes = torch.arange(16, dtype=torch.uint8)
    blocks = (codes | ((15 - codes) << 4)).view(1, 1, 16)
    scales = torch.tensor([[[125]]], dtype=torch.uint8)
    sizes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    elements = torch.cat((sizes, -sizes))
    expected = torch.stack((elements, elements.flip(0)), dim=1).flatten() / 4
    inputs, product = torch.arange(5 * 32.0).view(5, 32), torch.empty(5, 1)
    _multiply(found, inputs, blocks, scales, torch.tensor([0, 5]), product)
    is_wide = torch.equal(_widened(found, blocks, scales).flatten(), expected)
    return is_wide and torch.allclose(product[:, 0], inputs @ expected)
