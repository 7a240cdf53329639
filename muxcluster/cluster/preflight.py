"""Looks at weight files before anything starts: headers and lengths, not the numbers."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from muxcluster.core.errors import LoadError
from muxcluster.core.unitspec import ModelSpec

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def check_weights(models: Iterable[ModelSpec]) -> None:
    """Raises LoadError naming the weight file that is missing, truncated or corrupt.

    Cheap whatever the size: a safetensors header states the length its file must have.
    """
    for model in models:
        if model.load_format != "dummy":
            _check_directory(Path(model.path))


def _check_directory(directory: Path) -> None:
    for name, tensors in _tensors_of_files(directory).items():
        path = directory / name
        if not path.is_file():
            raise LoadError(path, "this weight file is missing")
        missing = sorted(set(tensors) - _tensors_in(path))
        if missing:
            raise LoadError(path, f"tensor {missing[0]!r} is missing, which {INDEX} puts there")


def _tensors_of_files(directory: Path) -> Mapping[str, list[str]]:
    """Weight file names -> tensors that the index, where there is one, expects in them."""
    index = directory / INDEX
    if not index.is_file():
        return {SINGLE: []}
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
        files: dict[str, list[str]] = {}
        for tensor, name in weight_map.items():
            files.setdefault(str(name), []).append(tensor)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise LoadError(index, f"not an index of safetensors files: {error!r}") from error
    return files


def _tensors_in(path: Path) -> set[str]:
    try:
        with safe_open(str(path), framework="numpy") as file:
            return set(file.keys())
    except (SafetensorError, OSError) as error:
        raise LoadError(path, f"truncated or corrupt: {error}") from error
