"""Reads the adapters of a loaded model, whose linears they must fit."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from muxcluster.core.errors import LoadError
from muxcluster.core.inputs.adapters.files import AdaptedModule, AdapterFiles, read_adapter
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.adapters.low_rank import Cut, LowRank, rank_sizes, read_pairs
from muxcluster.engine.adapters.places import PlacedAdapters, placed_linears, with_places
from muxcluster.engine.forward.latents import Expansion
from muxcluster.engine.quantised.linear import QuantisedLinear

logger = logging.getLogger(__name__)

Foreign = Any  # a module of transformers, with attributes that mypy does not know

_FIELDS = ("down", "up", "starts")


@dataclass(frozen=True, slots=True, eq=False)
class ModelAdapters:
    """The adapters of one model."""

    names: tuple[str, ...]
    modules: Mapping[str, LowRank]  # by the linear's name in the model
    places: PlacedAdapters | None = None  # of those that come later; None: none may come

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by names that `of` knows."""
        return {
            f"{module}/{name}": getattr(weights, name)
            for module, weights in self.modules.items()
            for name in _FIELDS
        }

    @classmethod
    def of(cls, spec: ModelSpec, tensors: Mapping[str, Tensor]) -> "ModelAdapters":
        """Return the adapters of `spec` on these tensors, of `tensors` in another process."""
        found: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for name, tensor in tensors.items():
            module, _, field = name.partition("/")
            found[module][field] = tensor
        modules = {module: _of_tensors(**fields) for module, fields in found.items()}
        return cls(tuple(adapter.name for adapter in spec.adapters), modules)


@torch.inference_mode()
def read_adapters(
    model: Foreign,
    spec: ModelSpec,
    device: str,
    cuts: Mapping[str, Cut] = MappingProxyType({}),
) -> ModelAdapters:
    """Return the adapters of `spec` on `device`, in the dtype of `model`; log their sizes.

    model: with all of its linears, undivided; they may have no data. cuts: of this rank, by the
    name of the weight. Raises LoadError naming the file and the tensor or linear at fault.
    """
    dtype = next(model.parameters()).dtype
    pairs: dict[str, dict[int, tuple[Tensor, Tensor]]] = defaultdict(dict)
    for place, adapter in enumerate(spec.adapters):
        files = read_adapter(Path(adapter.path))
        check_fits(files, model, spec.name)
        for name, pair in read_pairs(files, dtype, cuts).items():
            pairs[name][place] = pair
        num_kib = files.num_elements * dtype.itemsize // 1024
        logger.info("%s: adapter %s, %d KiB", spec.name, adapter.name, num_kib)
    names = tuple(adapter.name for adapter in spec.adapters)
    found = {module: _stacked(each, len(names), device) for module, each in pairs.items()}
    if not spec.adapter_places:
        return ModelAdapters(names, found)
    like = torch.empty(0, dtype=dtype, device=device)
    for name, num_inputs, num_outputs in placed_linears(model):
        mine = rank_sizes(cuts.get(f"{name}.weight"), num_inputs, num_outputs)
        found[name] = with_places(found.get(name), spec, mine, like)
    return ModelAdapters(names, found, PlacedAdapters(spec, len(names), dtype, cuts))


def _stacked(pairs: Mapping[int, tuple[Tensor, Tensor]], num_adapters: int, device: str) -> LowRank:
    """Return A and B by the adapters' places, as one."""
    places = sorted(pairs)
    ranks = [len(pairs[place][0]) if place in pairs else 0 for place in range(num_adapters)]
    return _of_tensors(
        torch.cat([pairs[place][0] for place in places]).to(device),
        torch.cat([pairs[place][1] for place in places]).to(device),
        torch.tensor([0, *accumulate(ranks)], dtype=torch.int32, device=device),
    )


def _of_tensors(down: Tensor, up: Tensor, starts: Tensor) -> LowRank:
    return LowRank(down, up, starts, int(starts.diff().max()))


def check_fits(files: AdapterFiles, model: Foreign, base: str) -> None:
    """Raise LoadError, naming the tensor, unless `model` has the linears that an adapter changes.

    They must have the sizes that its tensors have. model: as for `read_adapters`; base: its name.
    """
    for module in files.modules:
        _check_module(module, model, base, files)


def _check_module(adapted: AdaptedModule, model: Foreign, base: str, files: AdapterFiles) -> None:
    name, file = adapted.module, files.weights
    try:
        linear = model.get_submodule(name)
    except AttributeError:
        message = f"tensor {adapted.down}: {base} has no linear {name}; it is of another model"
        raise LoadError(file, message) from None
    if linear is model.get_output_embeddings():
        raise LoadError(file, f"tensor {adapted.down}: the output layer cannot be adapted")
    if isinstance(linear, Expansion):
        message = f"{name} of {base} makes keys and values of latents and cannot be adapted: merge"
        raise LoadError(file, f"tensor {adapted.down}: {message}")
    if not isinstance(linear, nn.Linear | QuantisedLinear):
        kind = type(linear).__name__
        raise LoadError(file, f"tensor {adapted.down}: {name} of {base} is no linear, but a {kind}")
    sizes: Sequence[tuple[str, int, int, str]] = (
        (adapted.down, adapted.in_features, linear.in_features, "inputs"),
        (adapted.up, adapted.out_features, linear.out_features, "outputs"),
    )
    for tensor, mine, its, what in sizes:
        if mine != its:
            message = f"tensor {tensor} is for {mine} {what}, {name} of {base} has {its}"
            raise LoadError(file, message)
