"""Runs of token slots to be copied, as jobs carry them."""

import numpy as np
from numpy.typing import NDArray

Runs = NDArray[np.int64]
"""int64 [n, 3]: first slot of the source, first slot of the destination, number of slots."""

NO_RUNS: Runs = np.empty((0, 3), dtype=np.int64)


def runs(
    sources: NDArray[np.int32],
    destinations: NDArray[np.int32],
    block_tokens: int,
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
) -> Runs:
    """Copies of places starts[i] .. ends[i]-1 of block sources[i] to those of destinations[i].

    All int32 [n], blocks of the pool or frames; empty ranges are left out.
    """
    filled = ends > starts
    first = starts[filled].astype(np.int64)
    answer = np.empty((len(first), 3), dtype=np.int64)
    answer[:, 0] = sources[filled] * np.int64(block_tokens) + first
    answer[:, 1] = destinations[filled] * np.int64(block_tokens) + first
    answer[:, 2] = ends[filled] - first
    return answer


def num_slots(copies: Runs) -> int:
    """Slots that `copies` move."""
    return int(copies[:, 2].sum())
