"""SM shares: which worker and rung a job gets."""

from dataclasses import replace
from itertools import product

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
    assert shares.up_to(Phase.DECODE, 0.7) == Place(1, 0.3)


def test_the_greatest_rung_up_to_a_share_and_to_what_is_left() -> None:
    shares = ledger(LADDER, LADDER, LADDER)
    assert shares.up_to(Phase.DECODE, 0.3) == Place(0, 0.25)
    assert shares.up_to(Phase.DECODE, 0.5) == Place(0, 0.5)
    assert shares.up_to(Phase.DECODE, 0.2) is None
    shares.start(replace(JOB, share=0.5), 1.5)
    assert shares.up_to(Phase.DECODE, 0.9) == Place(1, 0.5)
    assert shares.at(Phase.DECODE, 0.75) is None
    assert shares.at(Phase.DECODE, 0.25) == Place(1, 0.25)
    shares.start(replace(JOB, worker_id=1, share=0.25), 1.5)
    assert shares.rest(Phase.DECODE) == Place(2, 0.25)
    shares.start(replace(JOB, worker_id=2, share=0.25), 1.5)
    assert shares.up_to(Phase.DECODE, 1.0) is None
    shares.check()


ON_GPU = (
    WorkerSpec(0, (0.3, 0.5, 1.0), frozenset({Phase.PREFILL, Phase.MIXED})),
    WorkerSpec(1, (0.3, 0.5, 0.7, 1.0), frozenset({Phase.DECODE})),
    WorkerSpec(2, (0.3, 0.5, 0.7, 1.0), frozenset({Phase.DECODE})),
)


@pytest.mark.parametrize("most", [0.3, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("num_decodes", [1, 2, 3])
@pytest.mark.parametrize("prefills", [(), (Phase.PREFILL,)])
def test_tuples_are_all_in_which_no_job_could_have_more(
    prefills: tuple[Phase, ...], num_decodes: int, most: float
) -> None:
    """Against every choice of rungs, in whole tenths."""
    phases = prefills + (Phase.DECODE,) * num_decodes
    ladders = [(3, 5, 10)] * len(prefills) + [(3, 5, 7, 10)] * min(2, num_decodes)
    choices = [(0, *ladder) for ladder in ladders] + [(0,)] * (num_decodes - 2)
    fitting = {each for each in product(*choices) if sum(each) <= round(10 * most)}

    def dominated(each: tuple[int, ...]) -> bool:
        return any(
            other != each and all(x >= y for x, y in zip(other, each, strict=True))
            for other in fitting
        )

    wanted = {each for each in fitting if not dominated(each)}
    found = ShareLedger(ON_GPU).tuples(phases, most)
    assert {tuple(round(10 * rung) for rung in rungs) for rungs in found} == wanted
    assert len(found) == len(wanted)


def test_one_worker_runs_at_its_one_rung() -> None:
    shares = ledger((0.4,))
    assert shares.beside(Phase.PREFILL, Phase.DECODE) == Place(0, 0.4)
    assert shares.up_to(Phase.DECODE, 1.0) == Place(0, 0.4)
    assert shares.tuples((Phase.PREFILL, Phase.DECODE)) == ((0.4, 0.0),)
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
