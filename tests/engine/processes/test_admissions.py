"""A worker always knows the newest sampling rules of every row it is given, and is told once."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.inputs.images.prompt_image import PromptImage
from muxcluster.core.job import Admission, Job, Phase, Rows, TableDelta
from muxcluster.core.sampling import SamplingParams
from muxcluster.engine.processes.admissions import AdmissionLedger
from tests.engine.fakes import fake_spec

EMPTY = np.empty(0, dtype=np.int32)


def job_of(worker_id: int, table_rows: list[int], admissions: tuple[Admission, ...] = ()) -> Job:
    rows = Rows(
        table_rows=np.asarray(table_rows, dtype=np.int32),
        starts=np.zeros(len(table_rows), dtype=np.int32),
        counts=np.ones(len(table_rows), dtype=np.int32),
        samples=np.ones(len(table_rows), dtype=np.bool_),
    )
    tables = TableDelta(EMPTY, EMPTY, np.empty((0, 4), dtype=np.int32))
    return Job(1, "wide", Phase.DECODE, worker_id, 0.5, rows, tables, admissions)


def admission(row: int, seed: int) -> Admission:
    tokens = np.arange(3, dtype=np.int32)
    return Admission(row, f"r{seed}", tokens, 3, SamplingParams(seed=seed))


def test_the_other_worker_gets_the_rules_without_the_tokens() -> None:
    ledger = AdmissionLedger.of(fake_spec(), (0, 1))
    prefill = job_of(0, [5], (admission(5, seed=7),))
    assert ledger.complete(prefill, 0) is prefill
    (extra,) = ledger.complete(job_of(1, [5]), 1).admissions
    assert len(extra.tokens) == 0
    assert replace(extra, tokens=prefill.admissions[0].tokens).sampling.seed == 7
    assert extra.num_prompt_tokens == 3
    assert ledger.complete(job_of(1, [5]), 1).admissions == ()


@pytest.mark.parametrize("phase", [Phase.DECODE, Phase.MIXED])
def test_a_worker_that_goes_on_behind_the_images_gets_no_pixels(phase: Phase) -> None:
    image = PromptImage(1, (1, 2), b"x" * 32, np.ones((28, 56, 3), dtype=np.uint8))
    own = replace(admission(5, seed=7), images=(image,))
    ledger = AdmissionLedger.of(fake_spec(), (0, 1, 2))
    prefill = replace(job_of(0, [5], (own,)), phase=Phase.PREFILL)
    assert ledger.complete(prefill, 0).admissions == (own,)
    (other,) = ledger.complete(from_place(2, phase), 2).admissions
    assert other.images == (image,)
    (behind,) = ledger.complete(from_place(3, phase), 1).admissions
    (found,) = behind.images
    assert found.pixels.size == 0
    assert (found.start, found.grid, found.digest) == (image.start, image.grid, image.digest)


def test_pixels_come_again_with_a_new_admission_and_go_with_one_that_has_none() -> None:
    image = PromptImage(1, (1, 2), b"x" * 32, np.ones((28, 56, 3), dtype=np.uint8))
    own = replace(admission(5, seed=7), images=(image,))
    ledger = AdmissionLedger.of(fake_spec(), (0, 1))
    ledger.complete(job_of(0, [5], (own,)), 0)
    ledger.complete(from_place(3, Phase.MIXED), 0)
    ledger.complete(job_of(0, [5], (own,)), 0)
    (again,) = ledger.complete(job_of(1, [5]), 1).admissions
    assert again.images == (image,)
    ledger.complete(job_of(0, [5], (admission(5, seed=8),)), 0)
    (plain,) = ledger.complete(from_place(3, Phase.MIXED), 1).admissions
    assert (plain.images, plain.sampling.seed) == ((), 8)


def from_place(start: int, phase: Phase) -> Job:
    """A job of row 5 from so many of its tokens on."""
    job = job_of(0, [5])
    rows = replace(job.rows, starts=np.array([start], dtype=np.int32))
    return replace(job, rows=rows, phase=phase)


def test_a_new_worker_is_told_again() -> None:
    ledger = AdmissionLedger.of(fake_spec(), (0, 1))
    ledger.complete(job_of(0, [2], (admission(2, seed=1),)), 0)
    ledger.forget_worker(0)
    assert len(ledger.complete(job_of(0, [2]), 0).admissions) == 1
    assert ledger.complete(job_of(0, [2]), 0).admissions == ()


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.lists(st.integers(0, 7), min_size=1, max_size=5, unique=True),
            st.sets(st.integers(0, 7)),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_every_row_is_known_and_nothing_is_told_twice(
    steps: list[tuple[int, list[int], set[int], bool]],
) -> None:
    ledger = AdmissionLedger.of(fake_spec(), (0, 1))
    newest: dict[int, int] = {}
    known: dict[int, dict[int, int]] = {0: {}, 1: {}}
    for number, (worker, rows, admitted, is_restarted) in enumerate(steps):
        if is_restarted:
            ledger.forget_worker(worker)
            known[worker].clear()
        table_rows = [row for row in rows if row in newest or row in admitted]
        fresh = tuple(admission(row, number) for row in table_rows if row in admitted)
        newest.update({a.row: a.sampling.seed for a in fresh})
        for told in ledger.complete(job_of(worker, table_rows, fresh), worker).admissions:
            assert known[worker].get(told.row) != told.sampling.seed
            known[worker][told.row] = told.sampling.seed
        assert all(known[worker][row] == newest[row] for row in table_rows)
