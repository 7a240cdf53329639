"""When a unit gives up replacing its processes."""

import pytest

from muxcluster.core.errors import EngineFailure
from muxcluster.engine.processes.losses import (
    MAX_BLANK,
    MAX_IN_A_ROW,
    MAX_OWNERS,
    MAX_WORKERS,
    OWNERS_S,
    WORKERS_S,
    LossLedger,
)


def test_idle_workers_that_die_in_a_row() -> None:
    losses = LossLedger("unit-0")
    for i in range(MAX_BLANK):
        losses.worker_lost(1, 0, float(i))
    with pytest.raises(EngineFailure, match="worker 1 of unit-0 keeps dying: 6 processes"):
        losses.worker_lost(1, 0, 99.0)


@pytest.mark.parametrize("num_rows", [1, 7])
def test_jobs_that_kill_workers_in_a_row(num_rows: int) -> None:
    losses = LossLedger("unit-0")
    for i in range(MAX_IN_A_ROW):
        losses.worker_lost(0, num_rows, 1e3 * i)
    with pytest.raises(EngineFailure, match="in a row without a finished job"):
        losses.worker_lost(0, num_rows, 1e6)


def test_losses_between_finished_jobs_are_bounded_in_time() -> None:
    losses = LossLedger("unit-0")
    for i in range(MAX_WORKERS):
        losses.worker_lost(0, 4, 0.1 * i)
        losses.job_finished()
    with pytest.raises(EngineFailure, match="33 processes were lost within 60 s"):
        losses.worker_lost(0, 4, WORKERS_S - 1.0)


def test_rare_losses_go_on_for_ever() -> None:
    losses = LossLedger("unit-0")
    for i in range(5 * MAX_WORKERS):
        losses.worker_lost(0, 4, 1.01 * WORKERS_S / MAX_WORKERS * i)
        losses.job_finished()


def test_poisonous_requests_among_good_ones_do_not_end_the_unit() -> None:
    losses = LossLedger("unit-0")
    for i in range(1000):
        losses.worker_lost(0, 1, 0.01 * i)
        losses.worker_lost(0, 1, 0.01 * i)
        losses.job_finished()


def test_owners_are_bounded_in_time() -> None:
    losses = LossLedger("unit-0")
    for i in range(MAX_OWNERS):
        losses.owner_lost(float(i))
        losses.job_finished()
    with pytest.raises(EngineFailure, match="the memory owner of unit-0 keeps dying"):
        losses.owner_lost(OWNERS_S - 1.0)
