"""What a model's directory says about it: shape, vocabulary, end tokens, longest context."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muxcluster.core.errors import LoadError
from placement.shapes import ModelShape, ShapeError


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of one model. dtype: as its weights are stored, "float32" where it does not say."""

    shape: ModelShape
    eos_token_ids: tuple[int, ...]
    dtype: str


def read_facts(directory: Path) -> ModelFacts:
    """From config.json and generation_config.json, whose end tokens win.

    Raises LoadError naming the file.
    """
    config = _read(directory / "config.json")
    try:
        shape = ModelShape.from_hf_config(config)
    except ShapeError as error:
        raise LoadError(directory / "config.json", str(error)) from error
    file = directory / "generation_config.json"
    generation = _read(file) if file.is_file() else {}
    text = config.get("text_config") or config
    end = generation.get("eos_token_id")
    dtype = text.get("dtype") or text.get("torch_dtype") or "float32"
    return ModelFacts(shape, _ids(text.get("eos_token_id") if end is None else end), str(dtype))


def _ids(value: Any) -> tuple[int, ...]:
    """An end token is written as one id, a list of ids or null."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)


def _read(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise LoadError(file, "no such file") from error
    except (OSError, ValueError) as error:
        raise LoadError(file, f"not readable as JSON: {error}") from error
    if not isinstance(content, dict):
        raise LoadError(file, "expected a JSON object")
    return content
