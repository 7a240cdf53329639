"""Chooses the tile of queries and of keys of one program of paged prefill."""

from functools import cache
from typing import NamedTuple

import torch
import triton


class Tiling(NamedTuple):
    """Sizes of a program: rows of its matrices (queries times heads), keys at once."""

    members: int
    keys: int
    num_warps: int
    tiles_in_flight: int  # tiles of keys and values that a program waits for at a time


@cache
def capability(device: torch.device) -> int:
    """Return the major compute capability: 8 is Ampere, 9 Hopper; 9 for the CPU's interpreter."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 9


def choose_tiling(
    members: int,
    group: int,
    head_dim: int,
    dtype: torch.dtype,
    major: int,
    *,
    is_widened: bool = False,
    is_windowed: bool = False,
) -> Tiling:
    """Return tiles as large as registers allow, and no larger than rows of so many members need.

    is_widened: whether keys and values lie in 8 bits that the program itself makes numbers of.
    is_windowed: whether there is a sliding window, and no cap on the scores.
    """
    # Ampere's matrix units take both operands from registers, Hopper's from shared memory, which
    # leaves room for twice the keys.
    padded = triton.next_power_of_2(head_dim)
    least = max(16, triton.next_power_of_2(group))
    if dtype.itemsize > 2:
        return Tiling(least, 16, 4, 1)
    is_ampere = major < 9
    most = 64 if is_ampere and padded > 128 else 128
    block = max(least, min(most, triton.next_power_of_2(members)))
    keys = max(32, (4096 if is_ampere or block < 128 else 8192) // padded)
    if is_widened and (is_ampere or block >= 128):  # that takes registers too
        keys //= 2
    if is_windowed and major >= 10 and block == padded == 64:
        keys //= 2  # with 64 the compiler spills two registers for sm_100
    is_wide = block >= 128 or (is_ampere and block * padded >= 64 * 256)
    return Tiling(block, keys, 8 if is_wide else 4, 2)
