"""A job divided over units that run it side by side (BlendServe §6.1: data parallel)."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.blend.pieces import Pieces
from muxcluster.offline.prefix.ranges import joined_ranges

_SLICES = 4  # a piece of more than 1 / (4 · parts) of the job is cut, so that parts can be even


def divide(
    pieces: Pieces, num_parts: int, speeds: NDArray[np.float64] | None = None
) -> list[NDArray[np.int64]]:
    """Return places for each of `num_parts` units: compute and memory in proportion to its speeds.

    Each part then has about the density of the whole and ends with the others. Pieces stay whole
    except very large ones; what those share is computed on every unit that has a slice. Each unit
    plans its part as a job of its own. A part is empty if there are too few requests.

    speeds: float64 [num_parts, 2], more than 0: compute and memory bandwidth of each unit, each in
        any measure; by default all are alike.
    """
    starts, sizes = _slices(pieces, num_parts)
    even = np.ones((num_parts, 2)) if speeds is None else speeds / speeds.mean(axis=0)
    used = [
        np.add.reduceat(each, starts) / each.sum()
        for each in (pieces.request_work.compute_s, pieces.request_work.memory_s)
    ]
    loads = np.zeros((num_parts, 2))
    part_of = np.empty(len(starts), dtype=np.int64)
    shares = np.stack(used, axis=1)
    for piece in np.argsort(-shares.max(axis=1), kind="stable"):
        part = int(((loads + shares[piece]) / even).max(axis=1).argmin())
        part_of[piece] = part
        loads[part] += shares[piece]
    return [
        pieces.places[joined_ranges(starts[mine], sizes[mine])]
        for mine in (np.flatnonzero(part_of == part) for part in range(num_parts))
    ]


def _slices(pieces: Pieces, num_parts: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return starts and sizes of the pieces, large ones cut into slices of equal size."""
    work = pieces.work
    share = np.maximum(work.compute_s / work.compute_s.sum(), work.memory_s / work.memory_s.sum())
    wanted = np.ceil(share * _SLICES * num_parts).astype(np.int64)
    counts = np.clip(wanted, 1, pieces.size) if num_parts > 1 else np.ones_like(pieces.size)
    number = joined_ranges(np.zeros_like(counts), counts)
    start, size, count = (np.repeat(each, counts) for each in (pieces.start, pieces.size, counts))
    begin = start + number * size // count
    return begin, start + (number + 1) * size // count - begin
