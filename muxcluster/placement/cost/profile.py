"""A profile: measured seconds of jobs, in the JSON that `muxcluster profile` writes.

    {"version": 1, "gpu": "A100-80GB", "itemsize": 2, "machine": "host, date, versions",
     "models": [{"name": "chat", "shape": {"num_layers": 32, ...},
                 "cells": [{"phase": "decode", "tp": 1, "share": 0.5, "batch": 8, "tokens": 256,
                            "seconds": [0.0131, 0.0130, 0.0134]}],
                 "mixed": [{"tp": 1, "share": 1.0, "rows": 8, "context": 256,
                            "prompts": 2, "tokens": 128, "seconds": [0.0151]}],
                 "turns": [{"rows": 8, "new": 0, "seconds": [0.0006]}]}],
     "pairs": [{"tp": 1, "prefill": {"model": "chat", "share": 0.5, "batch": 1, "tokens": 512,
                                     "alone": [0.031], "beside": [0.034]},
                "decode": {"model": "chat", "share": 0.5, ...}}]}

`shape` has the fields of ModelShape. Cells may be any points of (SM share, batch, tokens), in any
order; not every combination is needed. `mixed`, `turns` and `pairs` may be missing.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from muxcluster.placement.cost.strict_json import Fault, Rule, build
from muxcluster.placement.shapes.shape import ModelShape

Positive = Annotated[float, Rule("greater than 0", lambda value: 0 < value < math.inf)]
Count = Annotated[int, Rule("at least 1", lambda value: value >= 1)]
Share = Annotated[float, Rule("above 0, 1 at most", lambda value: 0 < value <= 1)]
Seconds = Annotated[tuple[Positive, ...], Rule("one number at least", bool)]
Phase = Literal["prefill", "decode"]
# Fields that are never 0; a state-space model has no MLP, so intermediate_size is not among them.
_SIZES = (
    *("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim"),
    *("vocab_size", "num_experts", "experts_per_token"),
)
_SIZED = Rule(
    f"of sizes of at least 1 ({', '.join(_SIZES)})",
    lambda shape: all(getattr(shape, name) >= 1 for name in _SIZES),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement."""

    # "prefill" is one forward over `batch` prompts of `tokens` tokens each; "decode" is one step of
    # `batch` sequences, each of which attends to `tokens` tokens
    phase: Phase
    tp: Count  # GPUs that worked together
    share: Share  # of the SMs of each (CPU: of the cores), above 0 up to 1
    batch: Count
    tokens: Count
    seconds: Seconds  # of every repeat, without warm-up; at least one


@dataclass(frozen=True, slots=True)
class MixedCell:
    """One forward over `prompts` prompts of `tokens` tokens each, and the next token of `rows`
    sequences, each of which attends to `context` tokens."""

    tp: Count
    share: Share
    rows: Count
    context: Count
    prompts: Count
    tokens: Count
    seconds: Seconds  # as in `Cell`


@dataclass(frozen=True, slots=True)
class Turn:
    """What the unit itself does between a job and the next one like it.

    Each has `rows` sequences, `new` of which are admitted with it, and as many end. Where the
    cells' decode steps were sent ahead, that of steps which were not is longer by what this hides.
    """

    rows: Count
    new: Annotated[int, Rule("at least 0", lambda value: value >= 0)]
    seconds: Seconds  # as in `Cell`


@dataclass(frozen=True, slots=True)
class PairedJob:
    """A job as in `Cell`, alone and beside another."""

    model: str  # name of one of the profile's
    share: Share
    batch: Count
    tokens: Count
    # alone, beside: seconds of every repeat with nothing else on the GPU, and while the other one
    # of the pair ran all the time
    alone: Seconds
    beside: Seconds


@dataclass(frozen=True, slots=True)
class Pair:
    """Mutual slowdown of a prefill and a decode on separate SMs."""

    tp: Count
    prefill: PairedJob
    decode: PairedJob


@dataclass(frozen=True, slots=True)
class ProfiledModel:
    """All measurements of one model. It is identified by its shape; the name is for display."""

    name: str
    shape: Annotated[ModelShape, _SIZED]
    cells: tuple[Cell, ...]
    mixed: tuple[MixedCell, ...] = ()
    turns: tuple[Turn, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """Measurements on one kind of GPU in one dtype."""

    gpu: str  # a name that hardware.gpu_named knows, or "cpu"
    # Bytes of a weight
    itemsize: Annotated[int, Rule("from 1 to 8", lambda value: 1 <= value <= 8)]
    machine: str  # host, date and versions of the measurement, for display
    models: tuple[ProfiledModel, ...]
    pairs: tuple[Pair, ...] = ()  # of models of this profile
    version: Literal[1] = 1

    @classmethod
    def read(cls, path: Path) -> "Profile":
        """Read a profile. Raises OSError, or ValueError in one line: file, key, error, remedy."""
        content = path.read_bytes()
        try:
            return cls.from_json(json.loads(content))
        except Fault as fault:
            said = str(fault) if fault.key else f"not a profile: {fault}"
        except (ValueError, RecursionError) as error:
            said = f"not a profile: Invalid JSON: {error}"
        raise ValueError(f"{path}: {said}; `muxcluster profile` writes such files")

    @classmethod
    def from_json(cls, content: Any) -> "Profile":
        """Build a profile from the result of `json.loads`. Raises Fault."""
        found: Profile = build(cls, content)
        names = {model.name for model in found.models}
        for index, pair in enumerate(found.pairs):
            for phase, job in (("prefill", pair.prefill), ("decode", pair.decode)):
                if job.model not in names:
                    raise Fault(f"pairs[{index}].{phase}.model", f"no model {job.model!r} here")
        return found

    def to_json(self, indent: int | None = None) -> str:
        """Return the text that `read` reads."""
        content = asdict(self)
        return json.dumps({"version": content.pop("version"), **content}, indent=indent)
