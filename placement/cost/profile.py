"""A profile: measured seconds of jobs, as `muxcluster profile` writes them (JSON)."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from placement.shapes import ModelShape

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Phase = Literal["prefill", "decode"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Cell(_Frozen):
    """One measurement.

    share: of the SMs (CPU: of the cores). batch: sequences. tokens: of each prompt (prefill), of
    context (decode). seconds: of every repeat, warm-up left out.
    """

    phase: Phase
    tp: Count
    share: Annotated[float, Field(gt=0, le=1)]
    batch: Count
    tokens: Count
    seconds: Annotated[tuple[Positive, ...], Field(min_length=1)]


class ProfiledModel(_Frozen):
    """All measurements of one model; recognised by its shape."""

    name: str
    shape: ModelShape
    cells: tuple[Cell, ...]


class Profile(_Frozen):
    """Measurements on one kind of GPU (or "cpu") in one dtype; machine says where, for people."""

    version: Literal[1] = 1
    gpu: str
    itemsize: Annotated[int, Field(ge=1, le=8)]
    machine: str
    models: tuple[ProfiledModel, ...]

    @classmethod
    def read(cls, path: Path) -> "Profile":
        """Raises OSError, or ValueError in one line: file, key, what was wrong."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"])) or "the file"
            raise ValueError(f"{path}: {key}: {first['msg']}") from error
