"""Linears on CPUs whose weights, quantised or not, are read as they are by the C++ products."""

from functools import cached_property
from typing import TypeGuard

import torch
from torch import Tensor, nn

from muxcluster.engine.quantised.linear import FastLinear, QuantisedLinear
from muxcluster.kernels.native.products import Panels, Preparation, is_available, panels, product
from muxcluster.kernels.native.step import Linear
from muxcluster.kernels.products.quantised_product import unpacked

_DTYPES = (torch.float32, torch.bfloat16)  # of inputs: sums are in fp32


class PanelLinear(FastLinear):
    """A layer whose weight lies in panels; its elements are widened in registers."""

    def __init__(
        self,
        weight: Panels,
        bias: Tensor | None,
        order: Tensor | None = None,
        *,
        rounds_inputs: bool = False,
    ) -> None:
        """order: int64 [in]: column i of the weight is of input order[i]; None: as they are.
        rounds_inputs: to 8 bits, with a scale a token."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.panels = weight
        self.bias = bias
        self.order = order
        self._wide_bias = None if bias is None else bias.detach().float()
        self._plain = Preparation(rounds=rounds_inputs)
        self._gated = Preparation(is_gated=True, rounds=rounds_inputs)

    @cached_property
    def weight(self) -> Tensor:
        """[out, in] of a weight that is not quantised, made at the first access and then kept.

        Raises AttributeError for others.
        """
        # Some models read it in their forward.
        if self.panels.scales is not None:
            raise AttributeError("a quantised weight is not kept dense")
        return self.panels.elements()

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [..., in] to [..., out]."""
        return self._product(inputs, None, self._plain)

    def plus(self, inputs: Tensor, added: Tensor) -> Tensor:
        """Return `forward(inputs) + added` in one pass; `added` is like the result."""
        return self._product(inputs, added, self._plain)

    def of_normed(self, inputs: Tensor, norm: Tensor, eps: float) -> Tensor:
        """Return the product of rows of fp32 that are normed first (root mean square)."""
        preparation = Preparation(norm, eps, rounds=self._plain.rounds)
        return self._product(inputs, None, preparation)

    def of_gated_plus(self, gate_up: Tensor, added: Tensor) -> Tensor:
        """Return the product of silu(gate) * up, plus `added`. gate_up: fp32 [rows, 2 * in]."""
        return self._product(gate_up, added, self._gated)

    @property
    def native(self) -> Linear | None:
        """What a native step needs of this layer, None: its inputs have an order of their own."""
        if self.order is not None:
            return None
        return Linear(self.panels, self._wide_bias, self._plain.rounds)

    def _product(self, inputs: Tensor, added: Tensor | None, preparation: Preparation) -> Tensor:
        if self.order is not None:
            inputs = inputs[..., self.order]
        flat = inputs.reshape(-1, inputs.shape[-1]).float()
        if added is not None:
            added = added.reshape(-1, self.out_features).float()
        output = product(flat, self.panels, self._wide_bias, added, preparation)
        return output.to(inputs.dtype).view(*inputs.shape[:-1], self.out_features)


def can_read(dtype: torch.dtype) -> bool:
    """Return whether a `PanelLinear` for inputs of this type can be made here."""
    return dtype in _DTYPES and is_available()


def dense_panel_linear(linear: nn.Linear) -> PanelLinear:
    """Return the same layer with its weight, fp32 or bf16, in panels."""
    bias = None if linear.bias is None else linear.bias.detach()
    return PanelLinear(panels(linear.weight.detach()), bias)


def can_fuse(product: object, hidden: Tensor) -> TypeGuard[PanelLinear]:
    """Return whether `product` can prepare rows such as `hidden` in the same pass."""
    if not isinstance(product, PanelLinear) or hidden.dtype != torch.float32:
        return False
    return product.order is None


def panel_linear(linear: QuantisedLinear) -> PanelLinear:
    """Return the same layer with its weight in panels."""
    weight = linear.quantised
    values, rounds_inputs = unpacked(weight.values), linear.rounds_inputs
    stored = panels(values, weight.scales, weight.zeros, rounds_inputs=rounds_inputs)
    return PanelLinear(stored, linear.bias, weight.order, rounds_inputs=linear.rounds_inputs)
