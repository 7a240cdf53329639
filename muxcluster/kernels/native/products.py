"""Products of rows by a weight that is stored in panels, by the C++ kernels."""

import logging
from collections.abc import Callable
from ctypes import c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from muxcluster.kernels.native.build import library

logger = logging.getLogger(__name__)

WIDTH = 16  # outputs of a panel
# numbers of `Kind` in products.cpp, by dtype of the elements; uint8 has two of 4 bits
_KINDS = {
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.int8: 2,
    torch.float8_e4m3fn: 3,
    torch.uint8: 4,
}
_INT8_PAIRS = 5
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_POINTER = c_void_p
_ARGUMENTS = (
    c_int, _POINTER, _POINTER, _POINTER, c_int64, c_int64, c_int64,
    _POINTER, c_int64, _POINTER, c_float, c_int, c_int, _POINTER, _POINTER, _POINTER, c_int,
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Panels:
    """A weight [out, in] in panels of 16 outputs; outputs that fill up the last panel are zeros."""

    # [panels, in, 16]; uint8: [panels, in, 8], outputs 0 to 7 in the lower halves; in pairs:
    # [panels, in / 2, 32], of each output the elements of both inputs side by side
    values: Tensor
    scales: Tensor | None  # fp32 [panels, groups, 16]
    # like `scales`: an element is (value - zero) * scale; None: all 8 for 4 bits, else 0
    zeros: Tensor | None
    shape: tuple[int, int]  # (out, in)
    group: int  # inputs that share a scale; they divide `in`
    # int8 for inputs that are rounded to 8 bits, too: products are of whole numbers
    is_in_pairs: bool = False

    def elements(self) -> Tensor:
        """Return the stored elements [out, in], without scales; not for 4 bits."""
        rows = self.values.transpose(1, 2).flatten(0, 1)
        return rows[: self.shape[0]].contiguous()


def panels(
    values: Tensor,
    scales: Tensor | None = None,
    zeros: Tensor | None = None,
    *,
    rounds_inputs: bool = False,
) -> Panels:
    """Return a weight in panels.

    values: [out, in] of fp32, bf16, int8 or float8_e4m3fn; or uint8 [out, in], integers of 4 bits.
    scales, zeros: fp32 [out, groups]. rounds_inputs: the weight is for products that do, which are
    then of whole numbers where both are int8 with a scale a row.
    """
    num_out, num_in = values.shape
    group = num_in if scales is None else num_in // scales.shape[1]
    stored = _in_panels(values)
    is_whole = values.dtype == torch.int8 and group == num_in and zeros is None
    is_in_pairs = rounds_inputs and is_whole and num_in % 2 == 0
    if values.dtype == torch.uint8:
        stored = stored[..., :8] | (stored[..., 8:] << 4)
    elif is_in_pairs:
        stored = stored.view(len(stored), -1, 2, WIDTH).transpose(2, 3).flatten(2)
    return Panels(
        stored.contiguous(),
        None if scales is None else _in_panels(scales.float()),
        None if zeros is None else _in_panels(zeros.float()),
        (num_out, num_in),
        group,
        is_in_pairs,
    )


@dataclass(frozen=True, slots=True)
class Preparation:
    """What is done to each row before it is multiplied, in this order."""

    norm: Tensor | None = None  # fp32 [in]: the row over the root of its mean square, times this
    eps: float = 0.0  # of the norm
    is_gated: bool = False  # the row is [gate, up], of 2 * in elements: silu(gate) * up
    # to 8 bits: its largest element becomes 127 steps; for a weight in pairs always
    rounds: bool = False


_NONE = Preparation()


def product(
    inputs: Tensor,
    weight: Panels,
    bias: Tensor | None = None,
    added: Tensor | None = None,
    preparation: Preparation = _NONE,
) -> Tensor:
    """Return inputs times weight, plus `bias` and `added`: fp32 [rows, out].

    inputs: fp32 [rows, in]. bias: fp32 [out]. added: fp32 [rows, out]. Uses torch's number of
    threads. Raises RuntimeError where `is_available()` is false.
    """
    function = _function()
    if function is None:
        raise RuntimeError("the native kernels are not available here")
    return _called(function, inputs, weight, bias, added, preparation)


def _called(
    function: Callable[..., None],
    inputs: Tensor,
    weight: Panels,
    bias: Tensor | None = None,
    added: Tensor | None = None,
    preparation: Preparation = _NONE,
) -> Tensor:
    num_out, num_in = weight.shape
    inputs = inputs.contiguous()
    output = torch.empty((len(inputs), num_out))
    added = None if added is None else added.contiguous()
    function(
        kind_of(weight),
        weight.values.data_ptr(),
        _address(weight.scales),
        _address(weight.zeros),
        num_in,
        num_out,
        weight.group,
        inputs.data_ptr(),
        len(inputs),
        _address(preparation.norm),
        preparation.eps,
        preparation.is_gated,
        preparation.rounds,
        _address(bias),
        _address(added),
        output.data_ptr(),
        torch.get_num_threads(),
    )
    return output


def kind_of(weight: Panels) -> int:
    """Return the number of the weight's `Kind` in products.cpp."""
    return _INT8_PAIRS if weight.is_in_pairs else _KINDS[weight.values.dtype]


def is_available() -> bool:
    """Return whether the kernels can be had here; the first call may compile them, for seconds."""
    return _function() is not None


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _in_panels(rows: Tensor) -> Tensor:
    """Return [out, columns] as [panels, columns, 16]."""
    num_out, num_columns = rows.shape
    num_panels = -(-num_out // WIDTH)
    plain = rows.contiguous().view(_SAME_SIZE[rows.itemsize])  # torch cannot copy all FP8 so
    if num_out % WIDTH:
        filled = plain.new_zeros((num_panels * WIDTH, num_columns))
        filled[:num_out] = plain
        plain = filled
    turned = plain.view(num_panels, WIDTH, num_columns).transpose(1, 2).contiguous()
    return turned.view(rows.dtype)


@lru_cache
def _function() -> Callable[..., None] | None:
    found = library()
    if found is None:
        return None
    function: Callable[..., None] = found.mux_product
    found.mux_product.argtypes = _ARGUMENTS
    found.mux_product.restype = None
    if not _is_right(function):
        logger.warning("native kernels: products are wrong on this machine; they are torch's")
        return None
    return function


@torch.no_grad()
def _is_right(function: Callable[..., None]) -> bool:
    """Return whether a product of few rows and one of many are what they should be."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(-127, 128, (35, 48), generator=generator)
    scales = torch.rand((35, 3), generator=generator) + 0.5
    weight = panels(values.to(torch.int8), scales)
    exact = values.double() * scales.double().repeat_interleave(16, 1)
    for num_rows in (3, 20):
        inputs = torch.randn((num_rows, 48), generator=generator)
        expected = inputs.double() @ exact.T
        difference = (_called(function, inputs, weight).double() - expected).abs().max()
        if not float(difference) < 1e-4 * float(expected.abs().max()):
            return False
    return True
