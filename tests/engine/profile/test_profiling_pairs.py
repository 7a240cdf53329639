"""Co-located jobs of a profile: who runs beside whom, how often, and on whose memory."""

from dataclasses import replace

import pytest

from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import Job, Phase, WorkerSpec
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.profile.grid import Grid, Point
from muxcluster.engine.profile.pairs import PairPoint, measure_pairs, pair_points, paired_spec
from muxcluster.placement.cost import Pair
from tests.engine.fakes import FakeExecutor, fake_spec

GRID = Grid(shares=(0.3, 0.5, 0.7, 1.0), batches=(1, 4), lengths=(5, 40), repeats=3)


def alone(index: int, **others: object) -> UnitSpec:
    """One of the two fake models in a unit of its own."""
    spec = fake_spec()
    spec = replace(spec, models=spec.models[index : index + 1], workers=(WorkerSpec(0, (1.0,)),))
    return replace(spec, **others)


BOTH = (alone(0), alone(1))
WIDE, NARROW = (spec.models[0].name for spec in BOTH)


def test_every_two_models_meet_at_shares_that_make_up_the_whole() -> None:
    points = pair_points(BOTH, GRID)
    assert {(p.prefill_model, p.decode_model) for p in points} == {
        (one, other) for one in (WIDE, NARROW) for other in (WIDE, NARROW)
    }
    assert {(p.prefill.share, p.decode.share) for p in points} == {
        (0.3, 0.7),
        (0.5, 0.5),
        (0.7, 0.3),
    }
    assert len(points) == 12
    assert {(p.prefill.batch, p.prefill.tokens) for p in points} == {(1, 40)}
    assert {(p.decode.batch, p.decode.tokens) for p in points} == {(4, 40)}


def test_a_model_without_rows_for_both_is_not_paired_with_itself() -> None:
    short = replace(BOTH[0], models=(replace(BOTH[0].models[0], max_seqs=4),))
    points = pair_points((short, BOTH[1]), GRID)
    assert (WIDE, WIDE) not in {(p.prefill_model, p.decode_model) for p in points}
    assert (NARROW, WIDE) in {(p.prefill_model, p.decode_model) for p in points}


def test_no_pairs_where_no_two_shares_make_up_the_whole() -> None:
    assert pair_points(BOTH, replace(GRID, shares=(0.3, 1.0))) == ()


def measured(executor: FakeExecutor, *, same: bool) -> tuple[Pair, ...]:
    decode_model = WIDE if same else NARROW
    point = PairPoint(WIDE, Point(0.3, 1, 40), decode_model, Point(0.7, 4, 40))
    done: list[PairPoint] = []
    pairs = measure_pairs(paired_spec(BOTH, [point]), [point], 3, done.append, executor)
    assert done == [point]
    return pairs


@pytest.mark.parametrize("same", [False, True])
def test_both_are_measured_alone_and_side_by_side(same: bool) -> None:
    executor = FakeExecutor()
    (pair,) = measured(executor, same=same)
    assert executor.is_closed
    assert (pair.prefill.model, pair.decode.model) == (WIDE, WIDE if same else NARROW)
    for job, share, batch in ((pair.prefill, 0.3, 1), (pair.decode, 0.7, 4)):
        assert (job.share, job.batch, job.tokens) == (share, batch, 40)
        assert len(job.alone) == 3
        assert len(job.beside) >= 3
        assert min(job.alone + job.beside) > 0
    # Prompts of the decodes, alone (with a warm-up each), then at least 4 turns of both.
    prefills = [job for job in executor.launched if job.worker_id == 0]
    assert all(job.phase is Phase.PREFILL and job.share == 0.3 for job in prefills)
    decodes = [job for job in executor.launched if job.phase is Phase.DECODE]
    assert all(job.worker_id == 1 and job.share == 0.7 for job in decodes)
    assert min(len(prefills), len(decodes)) >= 4 + 4


def test_the_same_model_beside_itself_has_rows_and_blocks_of_its_own() -> None:
    executor = FakeExecutor()
    measured(executor, same=True)
    prefills = [job for job in executor.launched if job.worker_id == 0]
    assert all(job.rows.table_rows.tolist() == [0] for job in prefills)
    decodes = [job for job in executor.launched if job.worker_id == 1]
    assert {row for job in decodes for row in job.rows.table_rows.tolist()} == {1, 2, 3, 4}
    assert blocks_of(decodes).isdisjoint(blocks_of(prefills))
    assert blocks_of(decodes)


def blocks_of(jobs: list[Job]) -> set[int]:
    return {block for job in jobs for block in job.tables.blocks.ravel().tolist()}


def test_the_pool_is_just_large_enough() -> None:
    points = pair_points(BOTH, GRID)
    spec = paired_spec(BOTH, points)
    assert [model.name for model in spec.models] == [WIDE, NARROW]
    assert [worker.shares for worker in spec.workers] == [(0.3, 0.5, 0.7)] * 2
    measure_pairs(spec, points, 1, lambda point: None, FakeExecutor())
    short = replace(spec, num_blocks=spec.num_blocks - 1)
    with pytest.raises(AssertionError, match="does not fit"):
        measure_pairs(short, points, 1, lambda point: None, FakeExecutor())


@pytest.mark.parametrize("num_before", [0, 6, 12])
def test_a_lost_job_ends_it(num_before: int) -> None:
    executor = FakeExecutor(["done"] * num_before + ["failed"])
    with pytest.raises(EngineFailure, match="killed by the test"):
        measured(executor, same=False)
    assert executor.is_closed
