"""SM shares: which worker and rung a job gets."""

from dataclasses import replace

import numpy as np
import pytest

from muxcluster.core.job import Job, Phase, Rows, TableDelta, WorkerSpec
from muxcluster.scheduling.shares import Place, ShareLedger

LADDER = (0.25, 0.5, 0.75, 1.0)
ONE = np.zeros(1, dtype=np.int32)
JOB = Job(
    0,
    "a",
    Phase.DECODE,
    0,
    0.5,
    Rows(ONE, ONE, ONE, ONE > 0),
    TableDelta(ONE[:0], ONE[:0], np.zeros((0, 1), dtype=np.int32)),
)


def ledger(*ladders: tuple[float, ...]) -> ShareLedger:
    return ShareLedger([WorkerSpec(i, shares) for i, shares in enumerate(ladders)])


def test_one_kind_of_work_gets_everything() -> None:
    shares = ledger(LADDER, LADDER)
    assert shares.full(Phase.PREFILL) == Place(0, 1.0)
    assert shares.rest(Phase.DECODE) == Place(0, 1.0)


def test_both_kinds_split_evenly_and_leave_room() -> None:
    shares = ledger(LADDER, LADDER)
    assert shares.beside(Phase.PREFILL, Phase.DECODE) == Place(0, 0.5)
    assert shares.beside(Phase.PREFILL, Phase.DECODE, 0.3) == Place(0, 0.25)
    assert shares.beside(Phase.PREFILL, Phase.DECODE, 1.0) == Place(0, 0.75)
    shares.start(replace(JOB, phase=Phase.PREFILL, share=0.5), 1.5)
    assert shares.rest(Phase.DECODE) == Place(1, 0.5)


def test_an_uneven_ladder_gives_the_larger_part() -> None:
    shares = ledger((0.3, 0.7), (0.3, 0.7))
    assert shares.beside(Phase.PREFILL, Phase.DECODE) == Place(0, 0.7)
    shares.start(replace(JOB, phase=Phase.PREFILL, share=0.7), 1.5)
    assert shares.near(Phase.DECODE, 0.1) == Place(1, 0.3)


def test_the_nearest_rung_within_what_is_left() -> None:
    shares = ledger(LADDER, LADDER, LADDER)
    assert shares.near(Phase.DECODE, 0.3) == Place(0, 0.25)
    assert shares.near(Phase.DECODE, 0.375) == Place(0, 0.5)
    shares.start(replace(JOB, share=0.5), 1.5)
    assert shares.near(Phase.DECODE, 0.9) == Place(1, 0.5)
    assert shares.near(Phase.DECODE, 0.0) == Place(1, 0.25)
    shares.start(replace(JOB, worker_id=1, share=0.25), 1.5)
    assert shares.rest(Phase.DECODE) == Place(2, 0.25)
    shares.start(replace(JOB, worker_id=2, share=0.25), 1.5)
    assert shares.near(Phase.DECODE, 0.1) is None
    shares.check()


def test_one_worker_runs_at_its_one_rung() -> None:
    shares = ledger((0.4,))
    assert shares.beside(Phase.PREFILL, Phase.DECODE) == Place(0, 0.4)
    assert shares.near(Phase.DECODE, 0.1) == Place(0, 0.4)
    shares.start(replace(JOB, share=0.4), 1.5)
    assert shares.full(Phase.PREFILL) is None


def test_specialised_workers_keep_to_their_phase() -> None:
    shares = ShareLedger(
        [
            WorkerSpec(0, (0.5,), frozenset({Phase.PREFILL})),
            WorkerSpec(1, (0.5,), frozenset({Phase.DECODE})),
        ]
    )
    assert shares.full(Phase.PREFILL) == Place(0, 0.5)
    assert shares.rest(Phase.DECODE) == Place(1, 0.5)
    assert not shares.supports(Phase.MIXED)


def test_only_running_jobs_end() -> None:
    shares = ledger((1.0,))
    shares.start(JOB, 1.5)
    assert shares.end(replace(JOB, job_id=9)) is None
    assert shares.running_models(Phase.DECODE) == {"a"}
    assert shares.end(JOB) == 1.5
    assert shares.end(JOB) is None
    assert shares.running == ()


def test_check_finds_too_much_share() -> None:
    shares = ledger((0.75,), (0.75,))
    shares.start(replace(JOB, share=0.75), 1.5)
    shares.start(replace(JOB, worker_id=1, share=0.75), 1.5)
    with pytest.raises(AssertionError, match="sum to"):
        shares.check()
