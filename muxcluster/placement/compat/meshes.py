"""Divisions of the nodes into meshes."""

from collections.abc import Sequence
from dataclasses import dataclass

from muxcluster.placement.compat.columns import Column


@dataclass(frozen=True, slots=True)
class Meshes:
    """The meshes into which the nodes can be divided."""

    # GPUs of all nodes, each node's as `power_blocks`; every mesh is one of them or part of one
    blocks: tuple[int, ...]
    most: int | None = None  # meshes that a plan may have, idle ones included; None: any number

    @property
    def num_gpus(self) -> int:
        return sum(self.blocks)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes that a mesh may have, ascending."""
        return tuple(2**power for power in range(max(self.blocks).bit_length()))

    def room(self, size: int) -> int:
        """GPUs that meshes of that size or larger can use."""
        return sum(block for block in self.blocks if block >= size)


@dataclass(frozen=True, slots=True)
class Division:
    """A division of the nodes into meshes, with models on them."""

    columns: tuple[Column, ...]  # meshes with models
    idle: tuple[int, ...]  # sizes of the others
    unplaced: tuple[int, ...]  # models left out
    score: float  # F of the columns
    bound: float | None  # no division has a greater one; None if not known


def power_blocks(num_gpus: int) -> Sequence[int]:
    """Split a node into the fewest meshes: different powers of two, largest first."""
    powers = (1 << power for power in reversed(range(num_gpus.bit_length())))
    return [size for size in powers if num_gpus & size]
