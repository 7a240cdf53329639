"""SM shares are believed only where work was seen on as many multiprocessors."""

import pytest

from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import WorkerSpec
from muxcluster.engine.gpu.shares import check_apart, check_shares
from muxcluster.engine.processes.rungs import RungPlan, rung_per_share, rung_per_worker
from tests.engine.gpu.jobs import job_of

WHOLE = 132
RUNGS = rung_per_share([WorkerSpec(0, (0.3, 0.5)), WorkerSpec(1, (0.5, 0.7, 1.0))])


def seen(*counts: int) -> dict[int, frozenset[int]]:
    return {rung_id: frozenset(range(count)) for rung_id, count in enumerate(counts)}


def test_a_rung_per_share_or_per_worker() -> None:
    assert [(rung.worker_id, rung.share) for rung in RUNGS] == [
        (0, 0.3),
        (0, 0.5),
        (1, 0.5),
        (1, 0.7),
        (1, 1.0),
    ]
    rungs = RungPlan(RUNGS)
    assert [rungs.rung_of(job_of(1, share)) for share in (0.5, 0.7, 1.0)] == [2, 3, 4]
    with pytest.raises(KeyError):
        rungs.rung_of(job_of(0, 1.0))
    per_worker = RungPlan(rung_per_worker([WorkerSpec(0, (0.5, 1.0)), WorkerSpec(7, (0.5, 1.0))]))
    assert [per_worker.rung_of(job_of(7, share)) for share in (0.5, 1.0)] == [7, 7]


def test_shares_that_took_effect_pass() -> None:
    check_shares(RUNGS, seen(40, 66, 66, 92, 132), WHOLE)
    check_shares(RUNGS, seen(40, 72, 60, 92, 130), WHOLE)


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ((66, 40, 66, 92, 132), "0.3 and 0.5 of worker 0 are equal or swapped: work ran on 66 and"),
        ((40, 66, 92, 92, 132), "0.5 and 0.7 of worker 1 are equal or swapped"),
        ((132, 132, 132, 132, 132), "0.3 and 0.5 of worker 0 are equal or swapped"),
        ((40, 66, 100, 110, 132), "share 0.5 of worker 1 is not honoured: its work ran on 100 of"),
        ((4, 66, 66, 92, 132), "share 0.3 of worker 0 is not honoured: its work ran on 4 of 132"),
    ],
    ids=["swapped", "equal", "no MPS at all", "too many", "too few"],
)
def test_shares_that_did_not_are_refused(counts: tuple[int, ...], says: str) -> None:
    with pytest.raises(EngineFailure, match=says):
        check_shares(RUNGS, seen(*counts), WHOLE)


def test_complements_have_nothing_in_common() -> None:
    every = range(WHOLE)
    apart = {
        0: frozenset(every[:40]),
        1: frozenset(every[:66]),
        2: frozenset(every[66:]),
        3: frozenset(every[40:]),
        4: frozenset(every),
    }
    check_apart(RUNGS, apart)
    with pytest.raises(EngineFailure, match="0.5 of worker 0 and 0.5 of worker 1 should be apart"):
        check_apart(RUNGS, {**apart, 2: frozenset(every[60:126])})
