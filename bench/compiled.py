"""One specimen compiled for one GPU architecture, and what its binary asks of the hardware."""

import importlib
import pkgutil
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import kernels.triton_ops
from kernels.triton_ops.specimen import Specimen

SHARED_LIMITS = {80: 166_912, 90: 232_448, 100: 232_448}
"""Most shared memory of a thread block in bytes, by compute capability (CUDA C++ Programming Guide,
table of technical specifications: 163, 227 and 227 KiB): the A100, the H100 and the B200."""
_MATRIX = ("tcgen05.mma", "wgmma.mma_async", "mma.sync")
"""PTX of matrix products, newest first."""
_COPIES = ("cp.async.bulk", "cp.async.c")
"""PTX of asynchronous copies: by the tensor memory accelerator, by threads."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What one binary needs, per thread (registers, stack, spills) or thread block (shared)."""

    kernel: str
    capability: int
    registers: int
    stack_bytes: int
    spills: int
    """Instructions that load from or store to local memory."""
    shared_bytes: int
    matrix: str
    """Kind of matrix product, or -."""
    copies: str
    """Kind of asynchronous copy, or -."""
    seconds: float

    def faults(self) -> tuple[str, ...]:
        """Why this binary must not ship."""
        limit = SHARED_LIMITS[self.capability]
        found = []
        if self.stack_bytes or self.spills:
            found.append(f"{self.stack_bytes} bytes of stack, {self.spills} spills")
        if self.shared_bytes > limit:
            found.append(f"{self.shared_bytes} bytes of shared memory, over {limit}")
        return tuple(found)


class CompileFailed(Exception):
    """Triton or ptxas refused; the text says why (their own errors may not travel)."""


def modules() -> tuple[str, ...]:
    """Names of all modules below `kernels.triton_ops`."""
    return tuple(each.name for each in pkgutil.iter_modules(kernels.triton_ops.__path__))


def specimens(module: str) -> tuple[Specimen, ...]:
    """Those a module of `kernels.triton_ops` exports, none where it has no kernel."""
    found: tuple[Specimen, ...] = getattr(_loaded(module), "SPECIMENS", ())
    return found


def compile_named(module: str, index: int, capability: int) -> Compiled:
    """Compile `specimens(module)[index]`; takes names, as kernels cannot travel to a process.

    Raises CompileFailed.
    """
    return compile_specimen(specimens(module)[index], capability)


def compile_specimen(specimen: Specimen, capability: int) -> Compiled:
    """Compile, then read registers, stack and spills from the binary. Raises CompileFailed."""
    start = time.perf_counter()
    try:
        binary = _compile(specimen, capability)
    except Exception as error:
        raise CompileFailed(f"{type(error).__name__}: {error}") from error
    seconds = time.perf_counter() - start
    cubin, ptx = binary.asm["cubin"], binary.asm["ptx"]
    registers, stack_bytes, spills = _resources(cubin)
    return Compiled(
        kernel=specimen.name,
        capability=capability,
        registers=registers,
        stack_bytes=stack_bytes,
        spills=spills,
        shared_bytes=binary.metadata.shared,
        matrix=next((each for each in _MATRIX if each in ptx), "-"),
        copies=next((each for each in _COPIES if each in ptx), "-").removesuffix(".c"),
        seconds=round(seconds, 2),
    )


def _loaded(module: str) -> ModuleType:
    return importlib.import_module(f"{kernels.triton_ops.__name__}.{module}")


def _compile(specimen: Specimen, capability: int) -> Any:
    names = specimen.kernel.arg_names
    if set(names) != set(specimen.signature):
        raise ValueError(f"arguments are {names}, the specimen has {list(specimen.signature)}")
    source = ASTSource(
        specimen.kernel,
        {name: specimen.signature[name] for name in names},
        constexprs=dict(specimen.constants),
        attrs=dict(_divisible(specimen)),
    )
    return triton.compile(
        source,
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": specimen.num_warps, "num_stages": specimen.num_stages},
    )


def _divisible(specimen: Specimen) -> Iterator[tuple[tuple[int], list[list[object]]]]:
    """The attributes by place that Triton's JIT derives from a launch's arguments."""
    unknown = specimen.divisible.difference(specimen.signature)
    if unknown:
        raise ValueError(f"divisible names no argument: {sorted(unknown)}")
    for place, name in enumerate(specimen.kernel.arg_names):
        if name in specimen.divisible:
            yield (place,), [["tt.divisibility", 16]]


def _resources(cubin: bytes) -> tuple[int, int, int]:
    """(registers, stack bytes, spills) of a binary's kernel, asked of Triton's cuobjdump."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _cuobjdump("-res-usage", file.name)
        code = _cuobjdump("-sass", file.name)
    registers, stack_bytes = re.findall(r"REG:(\d+) STACK:(\d+)", usage)[-1]
    return int(registers), int(stack_bytes), len(re.findall(r"\b(?:LDL|STL)\b", code))


def _cuobjdump(option: str, file: str) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    done = subprocess.run((tool, option, file), capture_output=True, text=True, check=True)
    return done.stdout
