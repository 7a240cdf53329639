"""Linears whose weights are packed once into the layout of CPU kernels: our own, else oneDNN's.

oneDNN's is made by two private operators of torch; if they are missing or wrong, plain linears
stay.
"""

from functools import cached_property, lru_cache
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from muxcluster.engine.quantised.cpu_products import fast_linear
from muxcluster.engine.quantised.linear import FastLinear, QuantisedLinear
from muxcluster.engine.quantised.panel_linear import can_read, dense_panel_linear
from muxcluster.engine.quantised.rows import filled, filled_rows


class PackedLinear(FastLinear):
    """A linear layer with a weight packed by oneDNN; the plain weight is not kept."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.packed = _pack(linear.weight.detach())
        self.bias = None if linear.bias is None else linear.bias.detach()

    @cached_property
    def weight(self) -> Tensor:
        """[out_features, in_features], made at the first access and then kept."""
        # Some models read it in their forward.
        return self.packed.to_dense()

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        num_rows = inputs.numel() // self.in_features
        num_filled = filled_rows(num_rows)
        if num_filled == num_rows:
            return _apply(inputs, self.packed, self.bias)
        output = _apply(filled(inputs, num_filled), self.packed, self.bias)
        return output[:num_rows].view(*inputs.shape[:-1], self.out_features)

    def plus(self, inputs: Tensor, added: Tensor) -> Tensor:
        """Return `forward(inputs) + added` in one pass; `added` is like the result."""
        num_rows = inputs.numel() // self.in_features
        num_filled = filled_rows(num_rows)
        if num_filled == num_rows:
            return _apply_plus(inputs, self.packed, self.bias, added)
        rows, more = filled(inputs, num_filled), filled(added, num_filled)
        return _apply_plus(rows, self.packed, self.bias, more)[:num_rows].view(added.shape)


def pack_linears(model: nn.Module) -> int:
    """Replace every linear inside `model` by a packed one; return how many were plain before.

    Call it while the process has one thread if workers are forked later: they share the result.
    Returns 0 if this machine or torch build cannot pack the weights' type.
    """
    packed: WeakKeyDictionary[nn.Module, FastLinear] = WeakKeyDictionary()
    return _pack_inside(model, packed)


def _pack_inside(module: nn.Module, packed: WeakKeyDictionary[nn.Module, FastLinear]) -> int:
    """Pack linears recursively. packed: linears done before, for those used in several places."""
    # There is no list of all linears, so each plain weight is freed before the next is packed.
    num_packed = 0
    for name, child in list(module.named_children()):
        if isinstance(child, QuantisedLinear):
            setattr(module, name, fast_linear(child))
        elif type(child) is not nn.Linear:
            num_packed += _pack_inside(child, packed)
        elif can_pack(child.weight.dtype):
            if child not in packed:
                packed[child] = packed_linear(child)
                num_packed += 1
            setattr(module, name, packed[child])
    return num_packed


def can_pack(dtype: torch.dtype) -> bool:
    """Return whether `packed_linear` takes weights of this type here."""
    return can_read(dtype) or packs_correctly(dtype)


def packed_linear(linear: nn.Linear) -> FastLinear:
    """Return the same layer, faster; `can_pack` says whether there is one."""
    return dense_panel_linear(linear) if can_read(linear.weight.dtype) else PackedLinear(linear)


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
    return packed


def _apply(inputs: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    output: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, packed, bias, "none", [], "")
    return output


def _apply_plus(inputs: Tensor, packed: Tensor, bias: Tensor | None, added: Tensor) -> Tensor:
    output: Tensor = torch.ops.mkldnn._linear_pointwise.binary(inputs, added, packed, bias, "add")
    return output


@lru_cache
@torch.no_grad()
def packs_correctly(dtype: torch.dtype) -> bool:
    """Return whether packed and plain linears agree here, on odd sizes, with and without bias."""
    generator = torch.Generator().manual_seed(0)
    try:
        for rows in (1, 5):
            inputs = torch.randn(1, rows, 37, generator=generator).to(dtype)
            weight = torch.randn(53, 37, generator=generator).to(dtype)
            bias = torch.randn(53, generator=generator).to(dtype)
            for added in (bias, None):
                plain = nn.functional.linear(inputs, weight, added)
                packed = _pack(weight)
                torch.testing.assert_close(_apply(inputs, packed, added), plain)
                sums = _apply_plus(inputs, packed, added, 2 * plain)
                torch.testing.assert_close(sums, 3 * plain)
    except (RuntimeError, AttributeError, AssertionError):
        return False
    return True
