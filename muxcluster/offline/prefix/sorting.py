"""Prompts in the order of their ids, and how much each shares with the next."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.prefix.prompts import Prompts

_WIDTH = (32, 512)  # ids compared at once: at first, and at most
_CELLS = 1 << 18  # ids that one comparison may hold, so that it stays in the cache
_SLICE = 1 << 12  # prompts converted to keys at once


def sorted_order(prompts: Prompts) -> NDArray[np.int64]:
    """Return prompt numbers in lexicographic order of their ids, int64 [n]; a stable sort.

    Takes as much memory again as the ids: comparing bytes is faster than comparing rows in numpy.
    """
    keys = [key for start in range(0, len(prompts), _SLICE) for key in _keys(prompts, start)]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)


def _keys(prompts: Prompts, start: int) -> list[bytes]:
    """Return prompts from `start` on as bytes that compare as their ids: big-endian."""
    bounds = prompts.offsets[start : start + _SLICE + 1]
    data = prompts.ids[bounds[0] : bounds[-1]].astype(">u4").tobytes()
    edges = (4 * (bounds - bounds[0])).tolist()
    return [data[low:high] for low, high in zip(edges, edges[1:], strict=False)]


def shared_with_next(prompts: Prompts, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the leading tokens that each prompt of `order` shares with the next, int64 [n - 1]."""
    starts, counts = prompts.offsets[order], np.diff(prompts.offsets)[order]
    limits = np.minimum(counts[:-1], counts[1:])
    equal = _equal_ids(prompts.ids, starts[:-1], starts[1:], limits)
    lengths = prompts.lengths[order]
    return np.minimum(equal * prompts.id_tokens, np.minimum(lengths[:-1], lengths[1:]))


def _equal_ids(
    ids: NDArray[np.int32],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    limits: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return how many ids from `left` and `right` on are equal, at most `limits`; int64 [n]."""
    equal = np.zeros(len(limits), dtype=np.int64)
    live, at, width = np.flatnonzero(limits > 0), 0, _WIDTH[0]
    while len(live):
        found = np.concatenate(
            [
                _first_difference(ids, left[rows] + at, right[rows] + at, width)
                for rows in np.array_split(live, -(-len(live) * width // _CELLS))
            ]
        )
        equal[live] = np.minimum(at + found, limits[live])
        at += width
        live = live[(found == width) & (limits[live] > at)]
        width = min(2 * width, _WIDTH[1])
    return equal


def _first_difference(
    ids: NDArray[np.int32], left: NDArray[np.int64], right: NDArray[np.int64], width: int
) -> NDArray[np.int64]:
    """Return where `width` ids at `left` and `right` first differ; `width` if nowhere."""
    columns = np.arange(width)
    # A run beyond the end repeats the last id; the caller's limits cut that off.
    differs = ids.take(left[:, None] + columns, mode="clip") != ids.take(
        right[:, None] + columns, mode="clip"
    )
    return np.where(differs.any(axis=1), differs.argmax(axis=1), width)
