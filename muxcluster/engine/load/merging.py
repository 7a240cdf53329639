"""Merges linears that read the same input into one product: q/k/v and gate/up of each layer.

The merged weight is one tensor. The linears it was made of stay in the model under their names:
their weights and biases are views of its rows. So no byte is stored twice, code that reads or
exports a model by name works as before, and a process that maps the parts finds the merged weight
again by their addresses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

Foreign = Any  # a module of transformers, with attributes that mypy does not know

Linears = tuple[nn.Linear, ...]

_NAMES = ("weight", "bias")


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A merged product of several linears."""

    weight: Tensor  # [out_features, in_features]
    bias: Tensor | None  # [out_features] or None

    def __call__(self, inputs: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        return linear(inputs, self.weight, self.bias)


def same_input(layer: Foreign) -> tuple[Linears, Linears]:
    """Return (q, k, v) and (gate, up) of a layer of a model that `has_llama_layers`."""
    attention, mlp = layer.self_attn, layer.mlp
    return (attention.q_proj, attention.k_proj, attention.v_proj), (mlp.gate_proj, mlp.up_proj)


@torch.no_grad()
def merge_products(model: Foreign, device: str) -> None:
    """Give the linears of `same_input` merged storage on `device`; idempotent.

    Works layer by layer and frees each part once it is copied, so at most one group of linears
    exists twice. Linears that cannot be merged stay: not plain, of different types, or only some
    with bias.
    """
    for layer in model.model.layers:
        was_on_gpu = False
        for linears in same_input(layer):
            if merged(linears) is None and _can_merge(linears):
                was_on_gpu |= linears[0].weight.is_cuda
                for name in _NAMES:
                    _merge(linears, name, device)
        if was_on_gpu:
            torch.cuda.empty_cache()  # else torch keeps the old parts, which fit no later tensor


def merged(linears: Sequence[nn.Linear]) -> Product | None:
    """Return the merged product of linears in merged storage, not copied; None if they are not."""
    if not _can_merge(linears):
        return None
    weight, bias = (_spanning(_parts(linears, name)) for name in _NAMES)
    is_whole = weight is not None and (bias is None) == (linears[0].bias is None)
    return Product(weight, bias) if weight is not None and is_whole else None


def _can_merge(linears: Sequence[nn.Linear]) -> bool:
    if not all(type(each) is nn.Linear for each in linears):
        return False
    kinds = {(e.weight.dtype, e.weight.shape[1], e.bias is None) for e in linears}
    return len(kinds) == 1


def _parts(linears: Sequence[nn.Linear], name: str) -> list[Tensor]:
    """Return the parameters `name` of the linears, none if the linears have no bias."""
    parameters = [getattr(each, name) for each in linears]
    return [each.detach() for each in parameters if each is not None]


def _merge(linears: Sequence[nn.Linear], name: str, device: str) -> None:
    sizes = [len(each) for each in _parts(linears, name)]
    if not sizes:
        return
    first = getattr(linears[0], name)
    whole = torch.empty((sum(sizes), *first.shape[1:]), dtype=first.dtype, device=device)
    for each, rows in zip(linears, torch.split(whole, sizes), strict=True):
        rows.copy_(getattr(each, name))
        setattr(each, name, nn.Parameter(rows, requires_grad=False))


def _spanning(parts: Sequence[Tensor]) -> Tensor | None:
    """Return a view of all rows of `parts`; None unless they are consecutive in one storage."""
    if not parts:
        return None
    first = parts[0]
    storage, end = first.untyped_storage()._cdata, first.storage_offset()
    for part in parts:
        is_next = part.storage_offset() == end and part.is_contiguous()
        if part.untyped_storage()._cdata != storage or not is_next:
            return None
        end += part.numel()
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())
