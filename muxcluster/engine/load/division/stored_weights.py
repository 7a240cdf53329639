"""Tensors of safetensors files, read in parts, whatever names they have there."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from muxcluster.core.errors import LoadError
from muxcluster.engine.load.division.part import Part
from muxcluster.engine.load.division.stored_names import expert_spellings, spellings

_QUANTISED = ("I8", "F8_E4M3", "F8_E5M2")  # types, as safetensors names them, that need scales


class WeightFiles:
    """A `WeightSource` of safetensors; only the requested bytes are read.

    For models whose tensors have the names they have in the file, perhaps without `prefix`, or are
    made of experts' matrices there (stored_names.py).
    """

    def __init__(self, file: Path, tensors: Mapping[Path, set[str]], prefix: str) -> None:
        """file: as `check_weight_files` returns it; tensors: by file, as of `tensors_by_file`."""
        self._file = file
        self._prefix = f"{prefix}."
        self._shards = {name: shard for shard, names in tensors.items() for name in names}
        self._open: dict[Path, Any] = {}

    def parts(self, names: Sequence[str], like: Tensor, part: Part | None) -> Mapping[str, Tensor]:
        """As `WeightSource.parts`; names of equal tensors share the first of them."""
        found = {name: self._part(name, like, part) for name in names if self._stored(name)}
        if not found:
            merged = self._merged(names[0])
            if not merged:
                raise LoadError(self._file, f"lacks tensor {min(names)}")
            return {names[0]: self._experts(merged, like, part)}
        first, *others = found
        return {
            name: found[name]
            for name in (first, *others)
            if name == first or not torch.equal(found[name], found[first])
        }

    def tensor(self, name: str) -> Tensor | None:
        """Return the tensor of this name, None: there is none."""
        stored = self._stored(name)
        if not stored:
            return None
        whole: Tensor = self._opened(self._shards[stored]).get_tensor(stored)
        return whole

    def _part(self, name: str, like: Tensor, part: Part | None) -> Tensor:
        return self._read(name, self._stored(name), tuple(like.shape), part)

    def _experts(self, matrices: Sequence[str], like: Tensor, part: Part | None) -> Tensor:
        """Return part of [experts, outputs, inputs], of which each expert's outputs are stored as
        several matrices; `matrices` has their names, with a place for the expert's number."""
        num_experts, num_rows, num_columns = like.shape
        shape = (num_rows // len(matrices), num_columns)
        cuts = [_of_matrix(part, place * shape[0], shape[0]) for place in range(len(matrices))]

        def expert(number: int) -> Tensor:
            names = [matrix.format(number) for matrix in matrices]
            read = zip(names, cuts, strict=True)
            return torch.cat(
                [self._read(name, self._stored(name), shape, cut) for name, cut in read]
            )

        return torch.stack([expert(number) for number in range(num_experts)])

    def _read(self, name: str, stored: str, asked: tuple[int, ...], part: Part | None) -> Tensor:
        """Return part of a tensor of shape `asked`. stored: its name in the files, "": in none."""
        if not stored:
            raise LoadError(self._file, f"lacks tensor {name}")
        shard = self._shards[stored]
        tensor = self._opened(shard).get_slice(stored)
        shape = tuple(tensor.get_shape())
        if shape != asked:
            raise LoadError(shard, f"{name} has shape {shape}, config.json asks for {asked}")
        kind = tensor.get_dtype()
        if kind in _QUANTISED:
            raise LoadError(shard, f"{name} is stored as {kind}, and without a scale")
        if part is None:
            whole: Tensor = tensor[(slice(None),) * len(shape)]
            return whole
        pieces = [tensor[index] for index in part.slices(len(shape))]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, part.axis)

    def _opened(self, shard: Path) -> Any:
        if shard not in self._open:
            self._open[shard] = safe_open(shard, framework="pt")
        return self._open[shard]

    def _stored(self, name: str) -> str:
        """Return the name in the files, "" if it is in none."""
        for each in spellings(name):
            for stored in (each, each.removeprefix(self._prefix)):
                if stored in self._shards:
                    return stored
        return ""

    def _merged(self, name: str) -> tuple[str, ...]:
        """Return the patterns of the matrices that the weight is made of, none if in no file."""
        found = (each for each in expert_spellings(name) if self._stored(each[0].format(0)))
        return next(found, ())


def _of_matrix(part: Part | None, first: int, num_rows: int) -> Part | None:
    """Return what `part` of [experts, outputs, inputs] has of the matrix of one expert whose
    outputs are `first` to `first + num_rows`."""
    if part is None:
        return None
    assert part.axis > 0, "experts are divided by their features"
    flat = Part(part.axis - 1, part.ranges)
    return flat if flat.axis else flat.within(first, num_rows)
