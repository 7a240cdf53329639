"""Units of two ranks, and ranks that are threads of the test, for tests of tensor parallelism."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from muxcluster.config.facts import read_facts
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.engine.load.division.group import RankGroup
from muxcluster.placement.shapes.division import part_of

T = TypeVar("T")


def rank_model(spec: ModelSpec, size: int = 2) -> ModelSpec:
    """What one of `size` ranks has of a model."""
    heads, remainder = divmod(spec.shape.num_kv_heads, size)
    if remainder:
        heads = part_of(read_facts(Path(spec.path)).shape, size).num_kv_heads
    return replace(spec, shape=replace(spec.shape, num_kv_heads=heads))


def over_ranks(spec: UnitSpec, size: int = 2, *, partition: str = "none") -> UnitSpec:
    """The same unit on `size` ranks: as many columns of every model, which are smaller."""
    return replace(
        spec,
        models=tuple(rank_model(model, size) for model in spec.models),
        num_blocks=spec.num_blocks // size,
        num_host_blocks=spec.num_host_blocks // size,
        partition=partition,
        tp=size,
    )


class _Meeting:
    """What the threads of one group exchange."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.brought: list[Tensor] = [torch.empty(0)] * size


class ThreadGroup:
    """A `RankGroup` whose ranks are threads."""

    def __init__(self, rank: int, size: int, meeting: _Meeting) -> None:
        self.rank = rank
        self.size = size
        self._meeting = meeting

    def all_reduce(self, partial: Tensor) -> Tensor:
        return partial.copy_(torch.stack(self._exchange(partial)).sum(0))

    def gather(self, part: Tensor) -> Tensor:
        return torch.cat(self._exchange(part), dim=-1)

    def abort(self) -> None:
        self._meeting.barrier.abort()

    def _exchange(self, tensor: Tensor) -> list[Tensor]:
        self._meeting.brought[self.rank] = tensor.clone()
        self._meeting.barrier.wait(60)
        brought = list(self._meeting.brought)
        self._meeting.barrier.wait(60)
        return brought


def on_ranks(size: int, work: Callable[[RankGroup], T]) -> list[T]:
    """What `work` returns on each of `size` ranks; what it raises on one, if it does."""
    meeting = _Meeting(size)

    def run(rank: int) -> T:
        group = ThreadGroup(rank, size, meeting)
        with torch.inference_mode():
            try:
                return work(group)
            except BaseException:
                group.abort()
                raise

    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(run, rank) for rank in range(size)]
    errors = [error for future in futures if (error := future.exception())]
    for error in sorted(errors, key=lambda each: isinstance(each, threading.BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]
