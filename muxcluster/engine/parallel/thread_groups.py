"""The groups of a rank whose workers are threads: each thread meets its own worker's ranks."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from muxcluster.engine.parallel.process_group import ProcessGroup


class ThreadGroups:
    """A `RankGroup` that stands for the group of the worker that the calling thread has entered.

    The workers share their models, whose layers hold one group; collectives of two workers must not
    meet, so each worker has a communicator of its own. A thread that has entered none uses the
    first worker's: models are loaded so, before any thread runs.
    """

    def __init__(self, joined: ProcessGroup, worker_ids: Sequence[int]) -> None:
        """Make a group for every worker but the first, on all ranks in the same order."""
        first, *others = worker_ids
        self._of = {first: joined} | {worker_id: joined.beside() for worker_id in others}
        self._first = joined
        self._entered = threading.local()

    @property
    def rank(self) -> int:
        return self._first.rank

    @property
    def size(self) -> int:
        return self._first.size

    def of(self, worker_id: int) -> ProcessGroup:
        return self._of[worker_id]

    @contextmanager
    def entered(self, worker_id: int) -> Iterator[None]:
        """Let collectives of this thread meet those of the worker's on other ranks."""
        self._entered.group = self._of[worker_id]
        try:
            yield
        finally:
            del self._entered.group

    def all_reduce(self, partial: Tensor) -> Tensor:
        return self._here.all_reduce(partial)

    def gather(self, part: Tensor) -> Tensor:
        return self._here.gather(part)

    @property
    def _here(self) -> ProcessGroup:
        group: ProcessGroup = getattr(self._entered, "group", self._first)
        return group
