"""BATON's batch outside a unit: who leaves for host memory, and who comes in (§3.2)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.scheduling.state.batch_scaling import BatchScaling


@dataclass(slots=True)
class BatonScaling(BatchScaling):
    """Scales a batch whose queries are given with their cached tokens."""

    # Share of the limit up to which `entering` admits queries: the rest keeps those that came in
    # from being saved again at once.
    room: float = 0.9

    def leaving(self, rows: Mapping[int, int]) -> list[int]:
        """Return which of `rows` to save to host memory before the next step: the last to come in.

        rows: queries and their cached tokens, in the order in which they came in.
        """
        return list(rows)[self.num_fitting(_array(rows.values())) :]

    def entering(self, rows: Mapping[int, int], waiting: Mapping[int, int]) -> list[int]:
        """Return which of `waiting`, in their order, the batch has room for; none overtakes.

        An empty batch takes the first, whatever its memory.
        """
        tight = BatchScaling(self.row_bytes, int(self.room * self.limit_bytes), self.max_rows)
        tight.overhead = self.overhead
        longest = max(rows.values(), default=0)
        lengths = _array(waiting.values())
        return list(waiting)[: tight.num_fitting(lengths, num_rows=len(rows), longest=longest)]


def _array(lengths: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(lengths, dtype=np.int64)
