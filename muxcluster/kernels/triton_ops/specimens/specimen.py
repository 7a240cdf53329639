"""Arguments with which a kernel is compiled without a GPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ALL = (80, 90, 100)  # Compute capabilities of the A100, the H100 and the B200
AMPERE = (80,)
CONVERTING = (90, 100)  # They convert e4m3 numbers themselves
HOPPER = (90,)  # For specimens that differ from another in sizes only: one architecture shows them


@dataclass(frozen=True, slots=True)
class Specimen:
    """One realistic compilation of one Triton kernel, for the compile check.

    It states what Triton's JIT would find out at a launch: argument types, the values of the
    constexpr arguments, and which pointers and strides are multiples of 16.
    """

    name: str  # One thing on one GPU, with the shape in words, such as `paged_decode bf16 d128 g8`
    kernel: Any  # The `@triton.jit` function (Triton has no types)
    # The type of every argument: `*bf16`, `*i32`, `i32`, `fp32`, `constexpr`.
    signature: Mapping[str, str]
    constants: Mapping[str, object]  # The value of each `constexpr` argument
    # Names of the pointers, strides and other integers that are multiples of 16.
    divisible: frozenset[str]
    num_warps: int = 4
    num_stages: int = 2
    # Compute capabilities it is for; fewer where the tile sizes follow the device.
    capabilities: tuple[int, ...] = ALL
