"""The weight files of a Hugging Face directory: checked before any is read, read in parts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from muxcluster.core.errors import LoadError
from muxcluster.core.inputs.json_file import read_json_object

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def check_weight_files(directory: Path) -> Path:
    """Return the file that names all tensors: model.safetensors, or the index of a sharded model.

    Checks that every file exists, its header is sound, its data is complete, and shards hold what
    the index says. Raises LoadError naming the first file that fails.
    """
    single, index = directory / SINGLE, directory / INDEX
    if single.is_file() or not index.is_file():
        _tensor_names(single)
        return single
    for shard, expected in _shards(index).items():
        missing = expected - _tensor_names(shard)
        if missing:
            raise LoadError(shard, f"lacks tensor {min(missing)}, which {INDEX} promises")
    return index


def _shards(index: Path) -> dict[Path, set[str]]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise LoadError(index, "has no weight_map")
    shards: dict[Path, set[str]] = {}
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or Path(name).name != name:
            raise LoadError(index, f"weight_map sends {tensor} to {name!r}, which is no file name")
        shards.setdefault(index.parent / name, set()).add(tensor)
    return shards


def _tensor_names(file: Path) -> set[str]:
    """Return the names in the file; opening it compares the header with the file's length."""
    try:
        with safe_open(file, framework="pt") as tensors:
            return set(tensors.keys())
    except FileNotFoundError as error:
        raise LoadError(file, "no such file: weights must be in safetensors") from error
    except (SafetensorError, OSError) as error:
        raise LoadError(file, f"corrupt or incomplete: {error}") from error


class WeightFiles:
    """A `WeightSource` of safetensors; only the requested bytes are read.

    For models whose tensors have the names they have in the file, perhaps without `prefix`.
    """

    def __init__(self, file: Path, prefix: str) -> None:
        """file: as `check_weight_files` returns it."""
        self._file = file
        self._prefix = f"{prefix}."
        shards = _shards(file) if file.name == INDEX else {file: _tensor_names(file)}
        self._shards = {name: shard for shard, names in shards.items() for name in names}
        self._open: dict[Path, Any] = {}

    def parts(
        self, names: Sequence[str], like: Tensor, cut: tuple[slice, ...]
    ) -> Mapping[str, Tensor]:
        """As `WeightSource.parts`; names of equal tensors share the first of them."""
        found = {name: self._part(name, like, cut) for name in names if self._stored(name)}
        if not found:
            raise LoadError(self._file, f"lacks tensor {min(names)}")
        first, *others = found
        return {
            name: found[name]
            for name in (first, *others)
            if name == first or not torch.equal(found[name], found[first])
        }

    def _part(self, name: str, like: Tensor, cut: tuple[slice, ...]) -> Tensor:
        stored = self._stored(name)
        shard = self._shards[stored]
        if shard not in self._open:
            self._open[shard] = safe_open(shard, framework="pt")
        tensor = self._open[shard].get_slice(stored)
        shape = tuple(tensor.get_shape())
        if shape != like.shape:
            asked = tuple(like.shape)
            raise LoadError(shard, f"{name} has shape {shape}, config.json asks for {asked}")
        part: Tensor = tensor[cut]
        return part

    def _stored(self, name: str) -> str:
        """Return the name in the files, "" if it is in none."""
        short = name.removeprefix(self._prefix)
        return next((each for each in (name, short) if each in self._shards), "")
