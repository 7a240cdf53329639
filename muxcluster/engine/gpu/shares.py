"""Checks that SM shares took effect: each rung's work is seen on the multiprocessors it may use."""

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise

from muxcluster.core.errors import EngineFailure
from muxcluster.engine.gpu.refusals import EQUAL_SHARES, NOT_HONOURED, OVERLAP
from muxcluster.engine.processes.rungs import WorkerRung

# tolerated error, as a share of all multiprocessors: they are granted in groups (of 2 by MPS, of 8
# on Hopper by contexts)
_TOLERANCE = 0.1
_EPSILON = 1e-6

Seen = Mapping[int, frozenset[int]]  # rung id -> ids of the multiprocessors that its work ran on


def check_shares(rungs: Sequence[WorkerRung], seen: Seen, whole: int) -> None:
    """Raise EngineFailure if a share is not honoured, or two of one worker are equal or swapped.

    whole: number of multiprocessors of the GPU.
    """
    for worker_id in sorted({rung.worker_id for rung in rungs}):
        mine = [(_share(rung), rung) for rung in rungs if rung.worker_id == worker_id]
        ladder = [rung for _, rung in sorted(mine, key=lambda pair: pair[0])]
        for low, high in pairwise(ladder):
            _check_order(low, high, seen)
        for rung in ladder:
            _check_one(rung, len(seen[rung.rung_id]), whole)


def check_apart(rungs: Sequence[WorkerRung], seen: Seen) -> None:
    """Raise EngineFailure if shares of the first two workers that fit side by side overlap."""
    # Only the first two workers take the GPU from different ends.
    first_two = sorted({rung.worker_id for rung in rungs})[:2]
    for first, second in combinations(rungs, 2):
        if first.worker_id == second.worker_id or first.worker_id not in first_two:
            continue
        if second.worker_id not in first_two or _share(first) + _share(second) > 1.0 + _EPSILON:
            continue
        shared = len(seen[first.rung_id] & seen[second.rung_id])
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


def _check_order(low: WorkerRung, high: WorkerRung, seen: Seen) -> None:
    low_seen, high_seen = len(seen[low.rung_id]), len(seen[high.rung_id])
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


def _check_one(rung: WorkerRung, seen: int, whole: int) -> None:
    wanted = _share(rung) * whole
    if abs(seen - wanted) > max(1.0, _TOLERANCE * whole):
        raise EngineFailure(
            NOT_HONOURED.format(
                share=rung.share,
                worker=rung.worker_id,
                seen=seen,
                whole=whole,
                wanted=round(wanted),
            )
        )


def _share(rung: WorkerRung) -> float:
    assert rung.share is not None, "a rung without a share of its own"
    return rung.share
