"""A linear layer with a quantised weight."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from muxcluster.engine.quantised.weight import QuantisedWeight, are_alike, joined
from muxcluster.kernels.products.quantised_product import fits, quantised_product

_MOST = 127  # of an input rounded to 8 bits
_LEAST_SCALE = 1e-12  # of a token of zeros


class QuantisedLinear(nn.Module):
    """A linear that keeps its weight quantised.

    On GPUs products are our kernel's where it takes the groups; otherwise the weight is made dense,
    in the inputs' dtype, for every product. With `rounds_inputs` inputs are
    rounded to 8 bits first, with a scale a token (dynamic quantisation).
    """

    values: Tensor
    scales: Tensor
    zeros: Tensor | None
    order: Tensor | None
    bias: nn.Parameter | None

    def __init__(
        self,
        weight: QuantisedWeight,
        bias: nn.Parameter | None,
        dtype: torch.dtype,
        *,
        rounds_inputs: bool,
    ) -> None:
        """bias: [out], which may have no data yet. dtype: of the inputs."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.dtype = dtype
        self.rounds_inputs = rounds_inputs
        self.group = weight.group
        # not stored: a file has them under its own names
        for name in ("values", "scales", "zeros", "order"):
            self.register_buffer(name, getattr(weight, name), persistent=False)
        self.register_parameter("bias", bias)

    @property
    def quantised(self) -> QuantisedWeight:
        """The weight; its tensors are this layer's own."""
        return QuantisedWeight(self.values, self.scales, self.zeros, self.group, self.order)

    @property
    def weight(self) -> Tensor:
        """The dense weight [out, in] in the dtype of the inputs; made anew."""
        # Some models read its shape or dtype in their forward.
        dense = self.quantised.dense(self.dtype)
        return dense if self.order is None else dense[:, self.order.argsort()]

    def plus(self, inputs: Tensor, added: Tensor) -> Tensor:
        """Return `forward(inputs) + added`."""
        return self.forward(inputs).add_(added)

    def rows(self, index: Tensor) -> "QuantisedLinear":
        """Return a layer of some outputs, in the order of `index`."""
        bias = None if self.bias is None else nn.Parameter(self.bias[index], requires_grad=False)
        weight = self.quantised.rows(index)
        return QuantisedLinear(weight, bias, self.dtype, rounds_inputs=self.rounds_inputs)

    def release(self) -> None:
        """Let go of the weight; the layer cannot be used after that."""
        del self.values, self.scales, self.zeros, self.order

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [..., in] to [..., out]."""
        if self.order is not None:
            inputs = inputs[..., self.order]
        if self.rounds_inputs:
            values, scales = rounded(inputs)
            inputs = (values * scales).to(inputs.dtype)
        if not inputs.is_cuda or not fits(self.group):
            return linear(inputs, self.quantised.dense(inputs.dtype), self.bias)
        flat = inputs.reshape(-1, self.in_features)
        output = quantised_product(flat, self.values, self.scales, self.zeros, self.group)
        if self.bias is not None:
            output.add_(self.bias)
        return output.view(*inputs.shape[:-1], self.out_features)


class FastLinear(nn.Module):
    """A layer made of another, whose weight it has in a layout of its own."""

    bias: Tensor | None

    def plus(self, inputs: Tensor, added: Tensor) -> Tensor:
        """Return `forward(inputs) + added`."""
        product: Tensor = self(inputs)
        return product.add_(added)


def has_rounding(model: nn.Module) -> bool:
    """Return whether some linear of `model` rounds its inputs."""
    quantised = (each for each in model.modules() if isinstance(each, QuantisedLinear))
    return any(each.rounds_inputs for each in quantised)


def can_join(linears: Sequence[nn.Module]) -> bool:
    """Return whether `joined_linear` can join these layers."""
    mine = [each for each in linears if isinstance(each, QuantisedLinear)]
    kinds = {(each.dtype, each.rounds_inputs) for each in mine}
    is_all = len(mine) == len(linears) and len(kinds) == 1
    return is_all and are_alike([each.quantised for each in mine])


def joined_linear(linears: Sequence[QuantisedLinear]) -> QuantisedLinear:
    """Return one layer that computes what `linears` compute, their outputs one after the other."""
    first = linears[0]
    bias = None
    if any(each.bias is not None for each in linears):
        parts = [
            torch.zeros(each.out_features, dtype=each.dtype, device=each.scales.device)
            if each.bias is None
            else each.bias.detach()
            for each in linears
        ]
        bias = nn.Parameter(torch.cat(parts), requires_grad=False)
    weight = joined([each.quantised for each in linears])
    return QuantisedLinear(weight, bias, first.dtype, rounds_inputs=first.rounds_inputs)


def rounded(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Round [..., in] to 8 bits, symmetric, the largest of a token being 127.

    Returns whole numbers, fp32 [..., in], and scales, fp32 [..., 1].
    """
    exact = inputs.float()
    scales = (exact.abs().amax(dim=-1, keepdim=True) / _MOST).clamp_min(_LEAST_SCALE)
    return (exact / scales).round(), scales
