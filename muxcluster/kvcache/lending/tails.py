"""The lent columns of sequences: the last ones of their tables, but those they kept."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.kvcache.model_kv import ModelKv


def _tail_positions(counts: NDArray[np.int32], ends: NDArray[np.int32]) -> NDArray[np.int32]:
    """ends[i]-counts[i] .. ends[i]-1 for each i, one after the other, int32 [sum(counts)]."""
    stops = counts.cumsum()
    positions = np.arange(counts.sum()) + (ends - stops).repeat(counts)
    return np.asarray(positions, dtype=np.int32)


def lent_entries(
    kv: ModelKv, slots: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Slot, position and id of each lent column of `slots` but kept ones, int32 [m] each."""
    counts, ends = kv.lent.counts[slots], kv.sequences.num_columns[slots]
    rows, positions = slots.repeat(counts), _tail_positions(counts, ends)
    columns = kv.sequences.columns[rows, positions]
    is_lent = ~kv.lent.is_kept[columns]
    return rows[is_lent], positions[is_lent], columns[is_lent]
