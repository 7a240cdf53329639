"""Blocks of random bytes, and slot copies done byte by byte: the oracle of slot_copy."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def random_blocks(num_blocks: int, block_bytes: int, seed: int = 0) -> Tensor:
    generator = np.random.default_rng(seed)
    return torch.from_numpy(generator.integers(0, 256, (num_blocks, block_bytes), np.uint8))


def copied(
    destination: Tensor, source: Tensor, runs: list[tuple[int, int, int]], sizes: dict[str, int]
) -> Tensor:
    """What the destination must hold afterwards."""
    expected = destination.clone()
    width = sizes["slot_bytes"]

    def place(blocks: Tensor, slot: int, half: int, tokens: int) -> Tensor:
        start = half * (blocks.shape[1] // 2) + slot % tokens * width
        return blocks[slot // tokens, start : start + width]

    for first_source, first_destination, count in runs:
        for step in range(count):
            for half in (0, 1):
                target = place(
                    expected, first_destination + step, half, sizes["destination_tokens"]
                )
                target.copy_(place(source, first_source + step, half, sizes["source_tokens"]))
    return expected


def check(
    function: Callable[..., None],
    destination: Tensor,
    source: Tensor,
    runs: list[tuple[int, int, int]],
    *,
    dtype: torch.dtype = torch.int32,
    **sizes: int,
) -> None:
    """`function` must change what the runs name, and nothing else."""
    expected = copied(destination, source, runs, sizes)
    assert not torch.equal(expected, destination)
    read = source.clone()
    function(destination, source, torch.tensor(runs, dtype=dtype).view(-1, 3), **sizes)
    assert torch.equal(destination, expected)
    assert destination is source or torch.equal(source, read)
