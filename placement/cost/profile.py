"""A profile: measured seconds of jobs, in the JSON that `muxcluster profile` writes.

    {"version": 1, "gpu": "A100-80GB", "itemsize": 2, "machine": "host, date, versions",
     "models": [{"name": "chat", "shape": {"num_layers": 32, ...},
                 "cells": [{"phase": "decode", "tp": 1, "share": 0.5, "batch": 8, "tokens": 256,
                            "seconds": [0.0131, 0.0130, 0.0134]}]}]}

`shape` has the fields of placement.shapes.ModelShape. Cells may be any points of (SM share, batch,
tokens), in any order; not every combination is needed.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from placement.shapes import ModelShape

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Phase = Literal["prefill", "decode"]
_SIZES = (
    *("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim"),
    *("intermediate_size", "vocab_size", "num_experts", "experts_per_token"),
)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Cell(_Frozen):
    """One measurement.

    phase: "prefill" is one forward over `batch` prompts of `tokens` tokens each; "decode" is one
    step of `batch` sequences, each of which attends to `tokens` tokens.
    tp: GPUs that worked together. share: of the SMs of each (CPU: of the cores), above 0 up to 1.
    seconds: of every repeat, warm-up left out; at least one.
    """

    phase: Phase
    tp: Count
    share: Annotated[float, Field(gt=0, le=1)]
    batch: Count
    tokens: Count
    seconds: Annotated[tuple[Positive, ...], Field(min_length=1)]


class ProfiledModel(_Frozen):
    """All measurements of one model. It is recognised by its shape; the name is for people."""

    name: str
    shape: ModelShape
    cells: tuple[Cell, ...]

    @field_validator("shape")
    @classmethod
    def _sized(cls, shape: ModelShape) -> ModelShape:
        for name in _SIZES:
            if getattr(shape, name) < 1:
                raise ValueError(f"{name} is {getattr(shape, name)}, must be at least 1")
        return shape


class Profile(_Frozen):
    """Measurements on one kind of GPU in one dtype.

    gpu: a name that placement.hardware.gpu_named knows, or "cpu". itemsize: bytes of a weight.
    machine: where and with what it was measured, for people.
    """

    version: Literal[1] = 1
    gpu: str
    itemsize: Annotated[int, Field(ge=1, le=8)]
    machine: str
    models: tuple[ProfiledModel, ...]

    @classmethod
    def read(cls, path: Path) -> "Profile":
        """Raises OSError, or ValueError in one line: file, key, what is wrong, what to do."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise ValueError(f"{path}: {_first_fault(error)}") from error


def _first_fault(error: ValidationError) -> str:
    errors = error.errors()
    found = errors[0]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in found["loc"])
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    where = f"{key.removeprefix('.')}: " if key else "not a profile: "
    return f"{where}{found['msg']}{more}; `muxcluster profile` writes such files"
