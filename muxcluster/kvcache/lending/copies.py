"""Runs of token slots to be copied, as jobs carry them."""

import numpy as np
from numpy.typing import NDArray

Runs = NDArray[np.int64]
"""int64 [n, 3]: first slot of the source, first slot of the destination, number of slots."""

NO_RUNS: Runs = np.empty((0, 3), dtype=np.int64)


def runs(
    sources: NDArray[np.integer],
    destinations: NDArray[np.integer],
    block_tokens: int,
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
) -> Runs:
    """Copies of places starts[i] .. ends[i]-1 of block sources[i] to those of destinations[i].

    All integers [n], blocks of the pool or frames; empty ranges are left out.
    """
    filled = ends > starts
    if np.count_nonzero(filled) < len(filled):
        sources, destinations = sources[filled], destinations[filled]
        starts, ends = starts[filled], ends[filled]
    answer = np.empty((len(starts), 3), dtype=np.int64)
    answer[:, 0] = sources * np.int64(block_tokens) + starts
    answer[:, 1] = destinations * np.int64(block_tokens) + starts
    answer[:, 2] = ends - starts
    return answer
