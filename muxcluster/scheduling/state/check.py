"""Invariants of a model's rows, for tests."""

from collections.abc import Sequence

import numpy as np

from muxcluster.core.job import Job
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.running import RunningTable


def check_model(model: ModelState, running: Sequence[Job]) -> None:
    """Raise AssertionError where rows, `running` jobs and blocks contradict each other."""
    table = model.running
    is_lent = model.kv.num_lent > 0
    assert (table.is_lent == is_lent).all(), "lent sequences are forgotten"
    check_running(table)
    in_jobs = sum(len(job.rows) for job in running if job.model == model.name)
    assert in_jobs == table.in_job.sum(), "a sequence is in two jobs or a lost one"
    full = model.kv.capacity < table.num_computed
    assert not (full & table.is_live).any(), "a computed token has no block"


def check_running(table: RunningTable) -> None:
    """Raise AssertionError where the arrays contradict each other."""
    live = np.flatnonzero(table.is_live)
    num_taken = len(live) + table.num_written
    assert num_taken + len(table._free) == table.max_seqs, "a row is lost"
    assert not table.is_live[table._free].any(), "a live row is on the free list"
    assert table.is_written.sum() == table.num_written, "rows that are written to are miscounted"
    assert not (table.is_written & table.is_live).any(), "an ended sequence is live"
    assert (table.in_job[~table.is_live] == table.is_written[~table.is_live]).all(), (
        "an empty row is in a job"
    )
    assert table.has_aborted == table.is_aborted[live].any(), "aborted sequences are forgotten"
    assert table.num_suspects == table.is_suspect.sum(), "suspects are miscounted"
    assert not (table.is_suspect & ~table.is_live).any(), "an empty row holds a suspect"
    assert table.has_own_stops or not table.has_stops[live].any(), "stop ids are forgotten"
    has_target = (np.minimum(table.deadline_s, table.tpot_s)[live] < np.inf).any()
    assert table.has_targets or not has_target, "deadlines are forgotten"
    assert table.num_prefilling == table.is_prefilling[live].sum(), "prefills are miscounted"
    counts = table.is_batch.sum(), table.is_lent.sum()
    assert counts == (table.num_batch, table.num_lent), "batch or lent ones are miscounted"
    assert not table.in_job[table.is_lent].any(), "a lent sequence runs"
    for row in live.tolist():
        assert table.at(row).row == row, f"row {row} and its request disagree"
    tokens, computed = table.num_tokens[live], table.num_computed[live]
    assert (computed < tokens).all(), "a sequence has nothing left to compute"
    assert (tokens < table.max_total[live]).all(), "a sequence outlived its end"
    ready = ~table.is_prefilling[live]
    assert (computed[ready] == tokens[ready] - 1).all(), "a decoding sequence lags"
    _check_idle(table)


def _check_idle(table: RunningTable) -> None:
    prefilling, decoding = table.idle_prefilling(), table.idle_decoding()
    first_s = table.first_deadline_s()
    table.forget_idle()
    assert np.array_equal(prefilling, table.idle_prefilling()), "kept prefills are out of date"
    assert np.array_equal(decoding, table.idle_decoding()), "kept decodes are out of date"
    assert first_s == table.first_deadline_s(), "the kept deadline is out of date"
