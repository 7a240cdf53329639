"""Multisets of meshes that the nodes can hold: a mesh is a power of two GPUs of one node."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from muxcluster.placement.hardware import Gpu
from muxcluster.placement.problem import Node


@dataclass(frozen=True, slots=True)
class Kind:
    """All GPUs of one kind."""

    gpu: Gpu
    sizes: tuple[int, ...]  # GPUs of each node, ascending
    slots: Mapping[int, int]  # by tp, how many meshes of that size the empty nodes hold

    @property
    def num_gpus(self) -> int:
        return sum(self.sizes)

    def holds(self, counts: Mapping[int, int]) -> bool:
        """Return whether meshes, `counts` by tp, fit on the nodes at once.

        Sizes divide one another, so a mesh takes the room of tp / size smaller ones at any place,
        and counting is exact.
        """
        return all(
            sum(number * (tp // size) for tp, number in counts.items() if tp >= size) <= slots
            for size, slots in self.slots.items()
        ) and all(tp in self.slots for tp, number in counts.items() if number)


def kinds_of(nodes: Iterable[Node]) -> tuple[Kind, ...]:
    """Group the nodes by kind of GPU, in the order of their names. Cores of machines ("cpu") have
    one kind per machine size."""
    sizes: dict[Gpu, list[int]] = {}
    for node in nodes:
        sizes.setdefault(node.gpu, []).append(node.num_gpus)
    kinds = (_kind(gpu, found) for gpu, found in sizes.items())
    return tuple(sorted(kinds, key=lambda kind: (kind.gpu.name, kind.gpu.memory_bytes)))


def _kind(gpu: Gpu, sizes: Sequence[int]) -> Kind:
    slots: dict[int, int] = {}
    tp = 1
    while tp <= max(sizes):
        slots[tp] = sum(size // tp for size in sizes)
        tp *= 2
    return Kind(gpu, tuple(sorted(sizes)), slots)
