"""Reads the adapters of a loaded model, whose linears they must fit."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from muxcluster.core.errors import LoadError
from muxcluster.core.inputs.adapter_files import AdaptedModule, AdapterFiles, read_adapter
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.forward.latents import Expansion
from muxcluster.engine.quantised.linear import QuantisedLinear

logger = logging.getLogger(__name__)

Foreign = Any  # a module of transformers, with attributes that mypy does not know

_FIELDS = ("down", "up", "starts")


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """What the adapters of a model add to one linear, as `low_rank_update` takes it."""

    down: Tensor  # [ranks, in_features], A of one adapter after the other
    up: Tensor  # [ranks, out_features], B transposed and times its scale, in the same order
    starts: Tensor  # int32 [adapters + 1], rows of an adapter; none where it leaves the linear
    most_ranks: int  # of an adapter

    def ordered(self, order: Tensor) -> "LowRank":
        """Return the same for a linear whose outputs are in another order, int64 [out_features]."""
        return LowRank(self.down, self.up[:, order].contiguous(), self.starts, self.most_ranks)


@dataclass(frozen=True, slots=True, eq=False)
class ModelAdapters:
    """The adapters of one model."""

    names: tuple[str, ...]
    modules: Mapping[str, LowRank]  # by the linear's name in the model

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


class Cut(Protocol):
    """Which part of a weight [out, in] a rank has."""

    @property
    def axis(self) -> int:
        """0: outputs, 1: inputs."""
        ...

    def of(self, tensor: Tensor) -> Tensor:
        """Return this part of a tensor with that axis."""
        ...


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
        for module in files.modules:
            _check_fits(module, model, spec.name, files)
        for name, pair in _read(files, dtype, cuts).items():
            pairs[name][place] = pair
        num_kib = files.num_elements * dtype.itemsize // 1024
        logger.info("%s: adapter %s, %d KiB", spec.name, adapter.name, num_kib)
    names = tuple(adapter.name for adapter in spec.adapters)
    found = {module: _stacked(each, len(names), device) for module, each in pairs.items()}
    return ModelAdapters(names, found)


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


def _read(
    files: AdapterFiles, dtype: torch.dtype, cuts: Mapping[str, Cut]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return this rank's parts of A, and of B transposed and scaled, by module.

    Raises LoadError.
    """
    file, found = files.weights, {}
    try:
        with safe_open(file, framework="pt") as tensors:
            for each in files.modules:
                # scaled in fp32, so that a 16-bit type rounds once
                down, up = (tensors.get_tensor(name).float() for name in (each.down, each.up))
                cut = cuts.get(f"{each.module}.weight")
                if cut is not None and cut.axis:
                    down = cut.of(down)
                elif cut is not None:
                    up = cut.of(up)
                found[each.module] = (
                    _finite(down, each.down, dtype, file),
                    _finite(up.T * each.scale, each.up, dtype, file),
                )
        return found
    except (SafetensorError, OSError) as error:
        raise LoadError(file, f"corrupt or incomplete: {error}") from error


def _finite(tensor: Tensor, name: str, dtype: torch.dtype, file: Path) -> Tensor:
    """Return the tensor in `dtype`. Raises LoadError for numbers that are not finite there."""
    found = tensor.to(dtype).contiguous()
    if not bool(found.isfinite().all()):
        raise LoadError(file, f"tensor {name} holds NaN or infinite numbers in {dtype}")
    return found


def _check_fits(adapted: AdaptedModule, model: Foreign, base: str, files: AdapterFiles) -> None:
    """Raise LoadError unless the model has the linear, and of the sizes that the tensors have."""
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
