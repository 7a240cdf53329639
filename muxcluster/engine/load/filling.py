"""Gives a skeleton its weights, or one rank's part of them, one tensor at a time."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from muxcluster.engine.load.division.part import Part
from muxcluster.engine.load.skeleton import put, tied_names


class WeightSource(Protocol):
    """A source of weights; it holds no tensor after returning it."""

    def parts(self, names: Sequence[str], like: Tensor, part: Part | None) -> Mapping[str, Tensor]:
        """Return `part`, None: all, of the tensor of all `names`, by the names it has here.

        The parts may be views. like: shape and type of the whole, and its value if it needs none
        from here. Different tensors under two names stay different. Raises LoadError if there is
        none, or of another shape.
        """
        ...


def fill(
    model: nn.Module, source: WeightSource, device: str, parts: Mapping[str, Part] | None = None
) -> nn.Module:
    """Move `model` to `device` and fill all its parameters and stored buffers from `source`.

    parts: of parameters by their first names; others are whole. Raises LoadError as
    `WeightSource.parts`.
    """
    stored = model.state_dict(keep_vars=True)
    buffers = {name: each for name, each in stored.items() if not isinstance(each, nn.Parameter)}
    for names in list(tied_names(model)):
        like = model.get_parameter(names[0])
        mine = (parts or {}).get(names[0])
        found = {
            name: nn.Parameter(_own(part, like.dtype, device), requires_grad=False)
            for name, part in source.parts(names, like, mine).items()
        }
        first = next(iter(found.values()))
        for name in names:
            put(model, name, found.get(name, first))
    for name, buffer in buffers.items():
        stored_buffer = source.parts((name,), buffer, None)[name]
        put(model, name, _own(stored_buffer, buffer.dtype, device))
    return model.to(device)


def _own(part: Tensor, dtype: torch.dtype, device: str) -> Tensor:
    """Return a copy, so that a view keeps neither the whole tensor nor the file's mapping alive."""
    return part.to(device, dtype, copy=True, memory_format=torch.contiguous_format)
