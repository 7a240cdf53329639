"""How many queries a padded batch may hold: by its measured memory against a limit (BATON §3.2)."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.padded import PaddedBatch, RowBytes

# Share of the overhead of one batch that is forgotten with each later batch that takes less: a
# cache that allocates ahead does so once in many steps.
_FORGETTING = 0.05


@dataclass(slots=True)
class BatchScaling:
    """Scales a batch down before a step would take it over its limit, and up where there is room.

    The query that came first stays, whatever its memory, so every batch progresses.
    """

    row_bytes: RowBytes  # predicted; `observe` corrects it by what is really taken
    limit_bytes: int  # of the batch's cache
    max_rows: int  # at any memory
    overhead: float = field(default=1.0, init=False)  # memory that batches take / predicted
    usage: float = field(default=0.0, init=False)  # memory of the last batch / limit_bytes

    def observe(self, batch: PaddedBatch) -> None:
        """Learn from a batch by how much memory differs from the prediction."""
        self.usage = batch.num_bytes / self.limit_bytes
        foretold = self.row_bytes.of(batch.num_rows, batch.num_columns)
        if foretold:
            measured = batch.num_bytes / foretold
            gain = _FORGETTING if measured < self.overhead else 1.0
            self.overhead += gain * (measured - self.overhead)

    def num_bytes(self, num_rows: int, num_columns: int) -> float:
        """Return the bytes that a batch is expected to take."""
        return self.row_bytes.of(num_rows, num_columns) * self.overhead

    def num_fitting(
        self, lengths: NDArray[np.integer], *, num_rows: int = 0, longest: int = 0
    ) -> int:
        """Return how many queries, from the first on, may be in a batch for one more token each.

        lengths: int [n], their cached tokens. num_rows: others in the batch, of `longest` tokens at
        most. At least one where there are no others.
        """
        lengths = lengths[: max(0, self.max_rows - num_rows)].astype(np.int64)
        columns = np.maximum(np.maximum.accumulate(lengths), longest) + 1
        rows = num_rows + 1 + np.arange(len(columns))
        taken = rows * (self.row_bytes.fixed + self.row_bytes.per_token * columns)
        fitting = int(np.count_nonzero(taken * self.overhead <= self.limit_bytes))
        return fitting if num_rows else max(fitting, min(1, len(lengths)))
