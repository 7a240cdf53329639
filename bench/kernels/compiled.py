"""One specimen compiled for one GPU architecture, and the resources of its binary."""

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

from bench.kernels.occupancy import WARP, BlockNeeds, blocks_per_multiprocessor
from bench.kernels.sass import instructions_of, working_loops
from muxcluster.kernels import triton_ops
from muxcluster.kernels.triton_ops.specimens.specimen import Specimen

# Most shared memory of a thread block in bytes, by compute capability (CUDA C++ Programming Guide,
# table of technical specifications: 163, 227 and 227 KiB): the A100, the H100 and the B200.
SHARED_LIMITS = {80: 166_912, 90: 232_448, 100: 232_448}
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
_MATRIX = ("tcgen05.mma", "wgmma.mma_async", "mma.sync")  # PTX of matrix products, newest first
# PTX of asynchronous copies: by the tensor memory accelerator, by threads.
_COPIES = ("cp.async.bulk", "cp.async.c")


@dataclass(frozen=True, slots=True)
class Compiled:
    """What one binary needs and does: a thread (registers, stack, spills), a thread block (shared),
    its loops."""

    kernel: str
    capability: int
    registers: int
    stack_bytes: int
    spills: int  # Instructions that load from or store to local memory
    shared_bytes: int
    matrix: str  # Kind of matrix product, or -
    copies: str  # Kind of asynchronous copy, or -
    blocks: int  # Thread blocks that one multiprocessor runs at a time
    # Bytes that asynchronous copies of one multiprocessor's blocks have under way where the loop
    # with most of them waits.
    bytes_in_flight: int
    # Of each working loop, machine instructions of a warp a KiB that the block reads.
    loop_instructions: tuple[float, ...]
    # Of each working loop, the share of tensor-core products in its instructions.
    matrix_share: tuple[float, ...]
    seconds: float

    def faults(self, allowed_stack: int = 0) -> tuple[str, ...]:
        """Why this binary must not ship. allowed_stack: bytes of stack that are let pass."""
        limit = SHARED_LIMITS[self.capability]
        found = []
        if self.stack_bytes > allowed_stack or (self.spills and not allowed_stack):
            found.append(f"{self.stack_bytes} bytes of stack, {self.spills} spills")
        if self.shared_bytes > limit:
            found.append(f"{self.shared_bytes} bytes of shared memory, over {limit}")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class KernelTypes:
    """What a Triton kernel is launched with, but for the values of its constexpr arguments."""

    kernel: str  # its name, with its module
    # name, type as in a `Specimen`'s signature, and whether Triton takes it to be a multiple of 16;
    # without those that are constant in the binary
    arguments: tuple[tuple[str, str, bool], ...]


class CompileFailed(Exception):
    """Triton or ptxas refused; the text says why (their own errors may not travel)."""


def modules() -> tuple[str, ...]:
    """Names of the modules of `muxcluster.kernels.triton_ops`, its helpers left out."""
    return tuple(each.name for each in pkgutil.iter_modules(triton_ops.__path__) if not each.ispkg)


def specimens(module: str) -> tuple[Specimen, ...]:
    """Those a module of `muxcluster.kernels.triton_ops` exports, none where it has no kernel."""
    found: tuple[Specimen, ...] = getattr(_loaded(module), "SPECIMENS", ())
    return found


def types_of(specimen: Specimen) -> KernelTypes:
    """What a launch shows that runs the specimen's binary, but for its constants."""
    kernel = specimen.kernel
    types = ((name, specimen.signature[name]) for name in kernel.arg_names)
    return KernelTypes(
        f"{kernel.__module__}.{kernel.__name__}",
        tuple(
            (name, kind, name in specimen.divisible) for name, kind in types if kind != "constexpr"
        ),
    )


def compile_named(module: str, index: int, capability: int) -> Compiled:
    """Compile `specimens(module)[index]`; takes names, as kernels cannot travel to a process.

    Raises CompileFailed.
    """
    return compile_specimen(specimens(module)[index], capability)


def compile_specimen(specimen: Specimen, capability: int) -> Compiled:
    """Compile, then read from the binary what it needs and does. Raises CompileFailed."""
    start = time.perf_counter()
    try:
        binary = _compile(specimen, capability)
    except Exception as error:
        raise CompileFailed(f"{type(error).__name__}: {error}") from error
    seconds = time.perf_counter() - start
    ptx, metadata = binary.asm["ptx"], binary.metadata
    usage, code = _dumped(binary.asm["cubin"])
    registers, stack_bytes = (int(each) for each in _USAGE.findall(usage)[-1])
    shared_bytes: int = metadata.shared
    needs = BlockNeeds(metadata.num_warps, registers, shared_bytes, metadata.tmem_size)
    blocks = blocks_per_multiprocessor(needs, capability)
    loops = working_loops(instructions_of(code))
    threads = WARP * metadata.num_warps
    return Compiled(
        kernel=specimen.name,
        capability=capability,
        registers=registers,
        stack_bytes=stack_bytes,
        spills=len(re.findall(r"\b(?:LDL|STL)\b", code)),
        shared_bytes=shared_bytes,
        matrix=next((each for each in _MATRIX if each in ptx), "-"),
        copies=next((each for each in _COPIES if each in ptx), "-").removesuffix(".c"),
        blocks=blocks,
        bytes_in_flight=max(
            (int(each.turns_in_flight * each.thread_bytes * threads * blocks) for each in loops),
            default=0,
        ),
        # As many warps run the instructions as read the bytes.
        loop_instructions=tuple(
            round(each.instructions / (each.thread_bytes * WARP / 1024), 1) for each in loops
        ),
        matrix_share=tuple(round(each.matrix / each.instructions, 3) for each in loops),
        seconds=round(seconds, 2),
    )


def _loaded(module: str) -> ModuleType:
    return importlib.import_module(f"{triton_ops.__name__}.{module}")


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


def _dumped(cubin: bytes) -> tuple[str, str]:
    """What Triton's cuobjdump says of a binary: resource usage and machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return _cuobjdump("-res-usage", file.name), _cuobjdump("-sass", file.name)


def _cuobjdump(option: str, file: str) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    done = subprocess.run((tool, option, file), capture_output=True, text=True, check=True)
    return done.stdout
