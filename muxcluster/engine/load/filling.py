"""Gives a skeleton its weights, or one rank's part of them, a tensor at a time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from muxcluster.engine.load.skeleton import put, tied_names

Cut = Callable[[str, torch.Size], tuple[slice, ...]]
"""Which part of the tensor of that name and whole shape is wanted."""


class WeightSource(Protocol):
    """Where weights come from; none is held after it was asked for."""

    def parts(
        self, names: Sequence[str], like: Tensor, cut: tuple[slice, ...]
    ) -> Mapping[str, Tensor]:
        """The part `cut` of a tensor that has all of `names`, by the names it has here; a view of
        it, perhaps.

        like: shape and type of the whole, and its value where it needs none from here. Different
        tensors under two names are not one. Raises LoadError where there is none, or of another
        shape.
        """
        ...


def whole(name: str, shape: torch.Size) -> tuple[slice, ...]:
    """A `Cut` that takes everything."""
    return tuple(slice(0, length) for length in shape)


def fill(model: nn.Module, source: WeightSource, cut: Cut, device: str) -> nn.Module:
    """`model` on `device`, all its parameters and stored buffers from `source`.

    Raises LoadError as `WeightSource.parts`.
    """
    stored = model.state_dict(keep_vars=True)
    buffers = {name: each for name, each in stored.items() if not isinstance(each, nn.Parameter)}
    for names in list(tied_names(model)):
        like = model.get_parameter(names[0])
        parts = {
            name: nn.Parameter(_own(part, like.dtype, device), requires_grad=False)
            for name, part in source.parts(names, like, cut(names[0], like.shape)).items()
        }
        first = next(iter(parts.values()))
        for name in names:
            put(model, name, parts.get(name, first))
    for name, buffer in buffers.items():
        found = source.parts((name,), buffer, whole(name, buffer.shape))
        put(model, name, _own(found[name], buffer.dtype, device))
    return model.to(device)


def _own(part: Tensor, dtype: torch.dtype, device: str) -> Tensor:
    """A copy, so that neither the whole tensor nor the file's mapping stays behind a view of it."""
    return part.to(device, dtype, copy=True, memory_format=torch.contiguous_format)
