"""What a kernel is compiled with when no GPU is there to say."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ALL = (80, 90, 100)
"""Compute capabilities of the A100, the H100 and the B200."""
HOPPER = (90,)
"""For specimens that differ from another in sizes only: one architecture shows them."""


@dataclass(frozen=True, slots=True)
class Specimen:
    """One realistic compile of one Triton kernel, for the compile check.

    It states what Triton's JIT would find out at a launch: argument types, the values of the
    constexpr arguments, and which pointers and strides are multiples of 16.
    """

    name: str
    """One thing on one GPU, with the shape in words, such as `paged_decode bf16 d128 g8`."""
    kernel: Any
    """The `@triton.jit` function (Triton has no types)."""
    signature: Mapping[str, str]
    """The type of every argument: `*bf16`, `*i32`, `i32`, `fp32`, `constexpr`."""
    constants: Mapping[str, object]
    """The value of each `constexpr` argument."""
    divisible: frozenset[str]
    """Names of the pointers, strides and other integers that are multiples of 16."""
    num_warps: int = 4
    num_stages: int = 2
    capabilities: tuple[int, ...] = ALL
    """Compute capabilities it is for; fewer where the tile sizes follow the device."""
