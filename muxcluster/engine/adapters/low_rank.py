"""The numbers of adapters in one linear, and how they are read from an adapter's files."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from muxcluster.core.errors import LoadError
from muxcluster.core.inputs.adapters.files import CONFIG, AdapterFiles

_VERSION_CHARS = 16


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """What the adapters of a model add to one linear, as `low_rank_update` takes it."""

    down: Tensor  # [ranks, in_features], A of one adapter after the other
    up: Tensor  # [ranks, out_features], B transposed and times its scale, in the same order
    starts: Tensor  # int32 [adapters + 1], rows of an adapter; none where it leaves the linear
    most_ranks: int  # of an adapter
    order: Tensor | None = None  # int64 [out_features], of the model's outputs; None: as they are

    @property
    def sizes(self) -> tuple[int, int]:
        """Inputs and outputs of the linear."""
        return self.down.shape[1], self.up.shape[1]

    def ordered(self, order: Tensor) -> "LowRank":
        """Return the same for a linear whose outputs are in another order, int64 [out_features]."""
        up = self.up[:, order].contiguous()
        return LowRank(self.down, up, self.starts, self.most_ranks, order)


class Cut(Protocol):
    """Which part of a weight [out, in] a rank has."""

    @property
    def axis(self) -> int:
        """0: outputs, 1: inputs."""
        ...

    def of(self, tensor: Tensor) -> Tensor:
        """Return this part of a tensor with that axis."""
        ...


def rank_sizes(cut: Cut | None, num_inputs: int, num_outputs: int) -> tuple[int, int]:
    """Return the inputs and outputs of a linear that a rank has; cut: of its weight."""
    if cut is None:
        return num_inputs, num_outputs
    if cut.axis:
        return cut.of(torch.empty(1, num_inputs)).shape[1], num_outputs
    return num_inputs, cut.of(torch.empty(num_outputs, 1)).shape[0]


def read_pairs(
    files: AdapterFiles, dtype: torch.dtype, cuts: Mapping[str, Cut]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return this rank's parts of A, and of B transposed and scaled, by module.

    cuts: by the name of the weight. Raises LoadError naming the tensor at fault.
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


def version_of(files: AdapterFiles) -> str:
    """Return a digest of the files' content. Raises LoadError for one that cannot be read."""
    digest = hashlib.sha256()
    for file in (files.directory / CONFIG, files.weights):
        try:
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
        except OSError as error:
            raise LoadError(file, f"cannot be read: {error.strerror}") from error
    return digest.hexdigest()[:_VERSION_CHARS]


def _finite(tensor: Tensor, name: str, dtype: torch.dtype, file: Path) -> Tensor:
    """Return the tensor in `dtype`. Raises LoadError for numbers that are not finite there."""
    found = tensor.to(dtype).contiguous()
    if not bool(found.isfinite().all()):
        raise LoadError(file, f"tensor {name} holds NaN or infinite numbers in {dtype}")
    return found
