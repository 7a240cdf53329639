"""Whether SM shares took effect: each seat's work is seen on the multiprocessors it may use."""

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise

from muxcluster.core.errors import EngineFailure
from muxcluster.engine.gpu.refusals import EQUAL_SHARES, NOT_HONOURED, OVERLAP
from muxcluster.engine.processes.rungs import Seat

_TOLERANCE = 0.1
"""Of all multiprocessors: they are granted in groups (of 2 by MPS, of 8 on Hopper by contexts)."""
_EPSILON = 1e-6

Seen = Mapping[int, frozenset[int]]
"""Ids of the multiprocessors that a seat's work ran on, by seat id."""


def check_shares(seats: Sequence[Seat], seen: Seen, whole: int) -> None:
    """whole: the card's multiprocessors. Raises EngineFailure where a share is not honoured, or
    two of one worker are equal or swapped."""
    for worker_id in sorted({seat.worker_id for seat in seats}):
        mine = [(_share(seat), seat) for seat in seats if seat.worker_id == worker_id]
        ladder = [seat for _, seat in sorted(mine, key=lambda pair: pair[0])]
        for low, high in pairwise(ladder):
            _check_order(low, high, seen)
        for seat in ladder:
            _check_one(seat, len(seen[seat.seat_id]), whole)


def check_apart(seats: Sequence[Seat], seen: Seen) -> None:
    """For the first two worker slots, whose sides differ: shares that together fill at most the
    card have no multiprocessor in common. Raises EngineFailure."""
    first_two = sorted({seat.worker_id for seat in seats})[:2]
    for first, second in combinations(seats, 2):
        if first.worker_id == second.worker_id or first.worker_id not in first_two:
            continue
        if second.worker_id not in first_two or _share(first) + _share(second) > 1.0 + _EPSILON:
            continue
        shared = len(seen[first.seat_id] & seen[second.seat_id])
        if shared:
            raise EngineFailure(
                OVERLAP.format(
                    first=first.share,
                    first_worker=first.worker_id,
                    second=second.share,
                    second_worker=second.worker_id,
                    shared=shared,
                )
            )


def _check_order(low: Seat, high: Seat, seen: Seen) -> None:
    low_seen, high_seen = len(seen[low.seat_id]), len(seen[high.seat_id])
    if low_seen >= high_seen:
        raise EngineFailure(
            EQUAL_SHARES.format(
                low=low.share,
                high=high.share,
                worker=low.worker_id,
                low_seen=low_seen,
                high_seen=high_seen,
            )
        )


def _check_one(seat: Seat, seen: int, whole: int) -> None:
    wanted = _share(seat) * whole
    if abs(seen - wanted) > max(1.0, _TOLERANCE * whole):
        raise EngineFailure(
            NOT_HONOURED.format(
                share=seat.share,
                worker=seat.worker_id,
                seen=seen,
                whole=whole,
                wanted=round(wanted),
            )
        )


def _share(seat: Seat) -> float:
    assert seat.share is not None, "a seat without a share of its own"
    return seat.share
