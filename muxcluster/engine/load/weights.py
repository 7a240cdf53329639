"""Checks the weight files of a Hugging Face directory before any tensor is read; without torch."""

from pathlib import Path

from safetensors import SafetensorError, safe_open

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


def tensors_by_file(file: Path) -> dict[Path, set[str]]:
    """Return the names of the tensors in each file. file: as `check_weight_files` returns it."""
    return _shards(file) if file.name == INDEX else {file: _tensor_names(file)}


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
        with safe_open(file, framework="numpy") as tensors:
            return set(tensors.keys())
    except FileNotFoundError as error:
        raise LoadError(file, "no such file: weights must be in safetensors") from error
    except (SafetensorError, OSError) as error:
        raise LoadError(file, f"corrupt or incomplete: {error}") from error
