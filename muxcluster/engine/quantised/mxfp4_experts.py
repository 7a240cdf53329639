"""Experts whose weights stay in MXFP4, as gpt-oss's checkpoints store them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from muxcluster.engine.quantised.replacing import Cut
from muxcluster.kernels.products.mxfp4_product import BLOCK, mxfp4_product

_KINDS = frozenset({"GptOssExperts"})  # modules of transformers that are replaced
_PRODUCTS = ("gate_up_proj", "down_proj")

Foreign = Any  # a module of transformers, with attributes that mypy does not know


class BadExperts(ValueError):
    """Weights of experts do not fit the model, or cannot be divided; the message says which."""


@dataclass(frozen=True, slots=True, eq=False)
class Mxfp4Weight:
    """One weight of all experts, [experts, out, in], as `mxfp4_product` takes it."""

    blocks: Tensor  # uint8 [experts, out, in / 2]
    scales: Tensor  # uint8 [experts, out, in / 32]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(experts, out, in)."""
        experts, out, half = self.blocks.shape
        return experts, out, 2 * half

    def part(self, axis: int, ranges: Sequence[tuple[int, int]]) -> "Mxfp4Weight":
        """Return outputs (axis 1) or inputs (2) of one range. Raises BadExperts."""
        ((first, end),) = ranges
        if axis == 1:
            return Mxfp4Weight(self.blocks[:, first:end], self.scales[:, first:end])
        if first % BLOCK or end % BLOCK:
            raise BadExperts(f"inputs {first} to {end} are not whole blocks of {BLOCK}")
        scales = self.scales[:, :, first // BLOCK : end // BLOCK]
        return Mxfp4Weight(self.blocks[:, :, first // 2 : end // 2], scales)

    def to(self, device: str) -> "Mxfp4Weight":
        """Return a contiguous copy on `device` that keeps nothing else alive."""
        blocks, scales = (
            each.to(device, copy=True, memory_format=torch.contiguous_format)
            for each in (self.blocks, self.scales)
        )
        return Mxfp4Weight(blocks, scales)


# Returns both tensors of an expert weight of this name, shaped [experts, out, in].
ReadExperts = Callable[[str, tuple[int, int, int]], Mxfp4Weight]


class Mxfp4Experts(nn.Module):
    """gpt-oss's experts: clamped SwiGLU between two products with biases.

    Gate and up alternate among the outputs of the first product.
    """

    def __init__(self, experts: Foreign, gate_up: Mxfp4Weight, down: Mxfp4Weight) -> None:
        """experts: transformers' module, with biases (perhaps without data) and constants."""
        super().__init__()
        self.num_experts = gate_up.shape[0]
        self._alpha, self._limit = float(experts.alpha), float(experts.limit)
        # not stored: a file has them under names of its own
        for name, weight in zip(_PRODUCTS, (gate_up, down), strict=True):
            self.register_buffer(f"{name}_blocks", weight.blocks, persistent=False)
            self.register_buffer(f"{name}_scales", weight.scales, persistent=False)
        self.gate_up_proj_bias = experts.gate_up_proj_bias
        self.down_proj_bias = experts.down_proj_bias

    def forward(self, hidden: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        """Return [tokens, hidden_size], what each token's experts make of it, weighted and added.

        hidden: [tokens, hidden_size]. indices: int64 [tokens, chosen], numbers of experts. weights:
        [tokens, chosen].
        """
        chosen = indices.shape[1]
        experts, order = indices.flatten().sort(stable=True)
        first = torch.arange(self.num_experts + 1, device=experts.device)
        offsets = torch.searchsorted(experts, first)
        rows = hidden[order // chosen]
        gate_up = self._product(rows, "gate_up_proj", experts, offsets)
        output = self._product(self._gated(gate_up), "down_proj", experts, offsets)
        output.mul_(weights.flatten()[order].unsqueeze(-1))
        by_token = torch.empty_like(output).index_copy_(0, order, output)
        return by_token.view(len(hidden), chosen, -1).sum(1)

    def _product(self, rows: Tensor, name: str, experts: Tensor, offsets: Tensor) -> Tensor:
        """Return the product of rows sorted by `experts`, and the experts' biases to it."""
        blocks, scales = getattr(self, f"{name}_blocks"), getattr(self, f"{name}_scales")
        bias: Tensor = getattr(self, f"{name}_bias")
        return mxfp4_product(rows, blocks, scales, offsets).add_(bias[experts])

    def _gated(self, gate_up: Tensor) -> Tensor:
        gate = gate_up[..., ::2].clamp(max=self._limit)
        up = gate_up[..., 1::2].clamp(-self._limit, self._limit)
        return (up + 1) * (gate * torch.sigmoid(gate * self._alpha))


def replace_experts(
    model: nn.Module, read: ReadExperts, cuts: Mapping[str, Cut], device: str
) -> int:
    """Replace the experts of `model`, which may have no data, one layer at a time; return how many.

    cuts: of this rank, by the names of the parameters that are replaced. Raises BadExperts, and
    what `read` raises.
    """
    num_replaced = 0
    for name, experts in _experts_of(model):
        weights = []
        for leaf in _PRODUCTS:
            path = f"{name}.{leaf}"
            # the module has inputs before outputs
            num_experts, num_in, num_out = getattr(experts, leaf).shape
            whole = read(path, (num_experts, num_out, num_in))
            cut = cuts.get(path)
            # axis 2 of the module is axis 1 here, and the reverse
            mine = whole if cut is None else whole.part(3 - cut.axis, cut.ranges)
            weights.append(mine.to(device))
        model.set_submodule(name, Mxfp4Experts(experts, *weights))
        num_replaced += 1
    return num_replaced


def put_experts(model: nn.Module, tensor_of: Callable[[str], Tensor | None]) -> None:
    """Put such experts where another process's copy of `model` has them.

    tensor_of: its tensors by name, None: there is none of that name.
    """
    for name, experts in _experts_of(model):
        found = []
        for leaf in _PRODUCTS:
            blocks, scales = (tensor_of(f"{name}.{leaf}_{kind}") for kind in ("blocks", "scales"))
            if blocks is not None and scales is not None:
                found.append(Mxfp4Weight(blocks, scales))
        if len(found) == len(_PRODUCTS):
            model.set_submodule(name, Mxfp4Experts(experts, *found))


def stored_experts(tensor_of: Callable[[str], Tensor | None]) -> ReadExperts:
    """Return what reads experts from a checkpoint. tensor_of: its tensors, None: none of that name.

    A checkpoint has blocks uint8 [experts, out, in / 32, 16]. Raises BadExperts.
    """

    def read(name: str, shape: tuple[int, int, int]) -> Mxfp4Weight:
        num_experts, num_out, num_in = shape
        groups = (num_experts, num_out, num_in // BLOCK)
        asked = {"blocks": (*groups, BLOCK // 2), "scales": groups}
        found = {}
        for kind, expected in asked.items():
            tensor = tensor_of(f"{name}_{kind}")
            if tensor is None:
                raise BadExperts(f"{name}_{kind} is missing")
            if tensor.dtype != torch.uint8 or tuple(tensor.shape) != expected or num_in % BLOCK:
                kept = f"{tensor.dtype} {tuple(tensor.shape)}"
                raise BadExperts(f"{name}_{kind} is {kept}, config.json asks for uint8 {expected}")
            found[kind] = tensor
        return Mxfp4Weight(found["blocks"].flatten(2), found["scales"])

    return read


def dummy_experts(seed: int) -> ReadExperts:
    """Return what draws random experts, of a deviation near 0.02."""

    def read(name: str, shape: tuple[int, int, int]) -> Mxfp4Weight:
        num_experts, num_out, num_in = shape
        if num_in % BLOCK:
            raise BadExperts(f"{name} has {num_in} inputs, no multiple of {BLOCK}")
        generator = torch.Generator().manual_seed(seed + sum(name.encode()))
        size = (num_experts, num_out, num_in // 2)
        blocks = torch.randint(0, 256, size, dtype=torch.uint8, generator=generator)
        scales = torch.full((num_experts, num_out, num_in // BLOCK), 120, dtype=torch.uint8)
        return Mxfp4Weight(blocks, scales)

    return read


def _experts_of(model: nn.Module) -> list[tuple[str, Foreign]]:
    named = model.named_modules()
    return [(name, each) for name, each in named if type(each).__name__ in _KINDS]
