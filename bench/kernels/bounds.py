"""Bounds of compiled kernels' resources, so that a change for the worse is noticed.

The bounds are what `bench/compile_kernels.py --update-bounds` measured when they were last written,
in bench/kernels/bounds.json. They hold for one version of Triton, whose compiler they depend on.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.kernels.compiled import Compiled

FILE = Path(__file__).with_name("bounds.json")
_REGISTERS_SLACK = 8
# Share by which a loop may have more instructions, or fewer tensor-core products among them.
_SLACK = 0.05


@dataclass(frozen=True, slots=True)
class Bound:
    """As the fields of `Compiled`."""

    # registers, loop_instructions: at most so many, with some slack
    registers: int
    # blocks, bytes_in_flight: at least so many
    blocks: int
    bytes_in_flight: int
    loop_instructions: tuple[float, ...]
    matrix_share: tuple[float, ...]  # at least as much, with some slack

    @classmethod
    def of(cls, row: Compiled) -> "Bound":
        """What this binary just keeps."""
        return cls(
            row.registers,
            row.blocks,
            row.bytes_in_flight,
            row.loop_instructions,
            row.matrix_share,
        )

    def exceeded_by(self, row: Compiled) -> Iterator[str]:
        """In words, what of the binary is worse than the bound."""
        if row.registers > self.registers + _REGISTERS_SLACK:
            yield f"{row.registers} registers, the bound is {self.registers}"
        if row.blocks < self.blocks:
            yield f"{row.blocks} blocks a multiprocessor, the bound is {self.blocks}"
        if row.bytes_in_flight < self.bytes_in_flight:
            yield f"{row.bytes_in_flight} bytes in flight, the bound is {self.bytes_in_flight}"
        if len(row.loop_instructions) != len(self.loop_instructions):
            yield f"{len(row.loop_instructions)} loops, the bound has {len(self.loop_instructions)}"
            return
        for index, most in enumerate(self.loop_instructions):
            found = row.loop_instructions[index]
            if found > most * (1 + _SLACK):
                yield f"{found} instructions a KiB in loop {index}, the bound is {most}"
        for index, least in enumerate(self.matrix_share):
            share = row.matrix_share[index]
            if share < least * (1 - _SLACK):
                yield f"{share:.1%} tensor-core products in loop {index}, the bound is {least:.1%}"

    def beaten_by(self, row: Compiled) -> bool:
        """Whether the binary is better than the bound in something and worse in nothing."""
        if any(self.exceeded_by(row)):
            return False
        return any(Bound.of(row).exceeded_by(self.as_if(row)))

    def as_if(self, row: Compiled) -> Compiled:
        """The binary with this bound's numbers."""
        fields = {name: getattr(row, name) for name in Compiled.__slots__}
        return Compiled(**fields | {name: getattr(self, name) for name in Bound.__slots__})


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of all compiled kernels."""

    triton: str  # the version they are for
    by_binary: Mapping[str, Bound]  # of each kernel and architecture

    @classmethod
    def read(cls, file: Path = FILE) -> "Bounds":
        """Raises OSError or ValueError where the file cannot be read."""
        found = json.loads(file.read_text(encoding="utf-8"))
        return cls(found["triton"], {name: _parsed(each) for name, each in found["bounds"].items()})

    def write(self, file: Path = FILE) -> None:
        """One line a binary, by name."""
        rows = sorted(self.by_binary.items())
        lines = [f"    {json.dumps(name)}: {json.dumps(_plain(each))}" for name, each in rows]
        text = ",\n".join(lines)
        version = json.dumps(self.triton)
        file.write_text(f'{{\n  "triton": {version},\n  "bounds": {{\n{text}\n  }}\n}}\n', "utf-8")

    def faults(self, row: Compiled) -> Iterator[str]:
        """In words, why the binary is worse than it was, or cannot be compared."""
        bound = self.by_binary.get(binary_name(row))
        if bound is None:
            yield "no bounds: add them with --update-bounds"
        else:
            yield from bound.exceeded_by(row)

    def hints(self, row: Compiled) -> Iterator[str]:
        """In words, that bounds may be tightened."""
        bound = self.by_binary.get(binary_name(row))
        if bound is not None and bound.beaten_by(row):
            yield "better than its bounds: keep that with --update-bounds"


def binary_name(row: Compiled) -> str:
    """The kernel and its architecture."""
    return f"{row.kernel} sm_{row.capability}"


def updated(rows: Iterable[Compiled], triton: str, kept: Mapping[str, Bound]) -> Bounds:
    """The rows' own numbers, and `kept` of other binaries."""
    return Bounds(triton, {**kept, **{binary_name(row): Bound.of(row) for row in rows}})


def _plain(bound: Bound) -> dict[str, Any]:
    return {name: getattr(bound, name) for name in Bound.__slots__}


def _parsed(found: Mapping[str, Any]) -> Bound:
    plain = {name: tuple(each) if isinstance(each, list) else each for name, each in found.items()}
    return Bound(**plain)
