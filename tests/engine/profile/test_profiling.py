"""What a profile measures: jobs of exactly the asked size, on keys and values that are there."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.backends import ModelBackend
from muxcluster.core.errors import EngineFailure, LoadError
from muxcluster.core.job import Job, Phase, WorkerSpec
from muxcluster.core.padded import PaddedLimit, RowBytes
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobDone
from muxcluster.engine.profile import model as profiling
from muxcluster.engine.profile.grid import Grid, Point, fits, fits_mixed
from muxcluster.engine.profile.jobs import ProfileJobs, prompt_rows
from muxcluster.engine.profile.model import measure
from muxcluster.engine.profile.turns import measure_turns
from muxcluster.kvcache.cache import KvCache
from tests.blocks import block_tokens, scaled
from tests.engine.fakes import FakeExecutor, fake_spec, next_token

BLOCK = block_tokens(16)
SEVERAL_COLUMNS = scaled(40, 16)
"""Tokens of two columns and a half."""
GRID = Grid(shares=(0.5, 1.0), batches=(1, 3), lengths=(5, SEVERAL_COLUMNS), repeats=2)


@pytest.fixture(autouse=True)
def without_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are those of cells; the unit's own work is tested below."""
    monkeypatch.setattr(profiling, "measure_turns", lambda *arguments: ())


def lone_spec(num_blocks: int = 256, token_budget: int = 2048) -> UnitSpec:
    """The fake "wide" model alone: 4 blocks a column, 8 rows, context 512."""
    spec = fake_spec()
    return replace(
        spec,
        models=spec.models[:1],
        num_blocks=num_blocks,
        workers=(WorkerSpec(0, (0.5, 1.0)),),
        scheduler=replace(spec.scheduler, token_budget=token_budget),
    )


def by_point(launched: Sequence[Job]) -> dict[tuple[Phase, float, int], list[Job]]:
    """Jobs by phase, share and rows."""
    found: dict[tuple[Phase, float, int], list[Job]] = {}
    for job in launched:
        found.setdefault((job.phase, job.share, len(job.rows)), []).append(job)
    return found


def test_every_point_gives_a_prefill_and_a_decode_cell() -> None:
    done: list[Point] = []
    executor = FakeExecutor()
    cells = measure(lone_spec(), GRID, done.append, executor).cells
    assert tuple(done) == GRID.points() * (GRID.repeats + 1), "not in turn"
    expected = [
        (phase, point.share, point.batch, point.tokens)
        for point in GRID.points()
        for phase in ("prefill", "decode")
    ]
    assert [(c.phase, c.share, c.batch, c.tokens) for c in cells] == expected
    assert all(len(cell.seconds) == 2 and min(cell.seconds) > 0 for cell in cells)
    assert all(cell.tp == 1 for cell in cells)
    assert executor.is_closed
    launched = [job for job in executor.launched if job.phase is not Phase.MIXED]
    assert len(launched) == len(cells) * (GRID.repeats + 1)


def test_jobs_have_the_shares_rows_and_tokens_asked_for() -> None:
    executor = FakeExecutor()
    measure(lone_spec(), GRID, lambda point: None, executor)
    jobs = by_point(executor.launched)
    for point in GRID.points():
        prefills = jobs[Phase.PREFILL, point.share, point.batch]
        whole = [job for job in prefills if job.rows.counts[0] == point.tokens]
        assert len(whole) == GRID.repeats + 1
        assert all((job.rows.starts == 0).all() for job in whole)
        decodes = jobs[Phase.DECODE, point.share, point.batch]
        steps = [job for job in decodes if job.rows.starts[0] + 1 == point.tokens]
        assert len(steps) == GRID.repeats + 1
        for job in steps:
            assert (job.rows.starts + job.rows.counts == point.tokens).all()
            assert (job.rows.counts == 1).all()
            assert job.rows.samples.all()


def test_a_decode_reads_the_prompts_that_were_just_prefilled() -> None:
    jobs, executor = ProfileJobs(lone_spec()), FakeExecutor()
    point = Point(1.0, 2, 40)
    tokens = []
    for job in (*jobs.prefill(point), jobs.decode(point)):
        executor.launch(job)
        (outcome,) = executor.wait(None)
        assert isinstance(outcome, JobDone)
        tokens.append(outcome.result.tokens.tolist())
    prompts = [admission.tokens.tolist() for admission in executor.launched[0].admissions]
    assert [len(prompt) for prompt in prompts] == [40, 40]
    after_prompts = [next_token(prompt) for prompt in prompts]
    assert tokens == [after_prompts, after_prompts]


def test_each_prefill_has_new_prompts_and_whole_tables() -> None:
    jobs = ProfileJobs(lone_spec(num_blocks=4 * 3 * 2))  # room for two sequences
    point = Point(1.0, 2, SEVERAL_COLUMNS)
    (first,), (second,) = jobs.prefill(point), jobs.prefill(point)
    for job in (first, second):
        entries = set(zip(job.tables.rows.tolist(), job.tables.columns.tolist(), strict=True))
        assert entries == {(row, column) for row in (0, 1) for column in (0, 1, 2)}
        assert len(set(job.tables.blocks.ravel().tolist())) == 4 * 3 * 2
    assert first.admissions[0].tokens.tolist() != second.admissions[0].tokens.tolist()
    assert len(jobs.decode(point).tables) == 0


def test_prompts_beyond_the_token_budget_take_several_jobs_that_count_together() -> None:
    executor = FakeExecutor()
    grid = Grid((1.0,), (3,), (40,), repeats=1)
    cells = measure(lone_spec(token_budget=50), grid, lambda point: None, executor).cells
    assert len(cells) == 2
    prefills = [job for job in executor.launched if job.phase is Phase.PREFILL]
    assert [int(job.rows.counts.sum()) for job in prefills] == [50, 50, 20] * 2
    assert [len(job.admissions) for job in prefills] == [3, 0, 0] * 2


def test_mixed_jobs_decode_beside_new_prompts_on_the_whole_gpu() -> None:
    executor = FakeExecutor()
    grid = Grid(shares=(0.5, 1.0), batches=(1, 5, 8), lengths=(5, 40), repeats=2)
    mixed = measure(lone_spec(), grid, lambda point: None, executor).mixed
    found = [(each.rows, each.context, each.prompts, each.tokens) for each in mixed]
    # beside 8 sequences no slot is left
    assert found == [(1, 5, 1, 5), (5, 5, 1, 5), (1, 40, 1, 40), (5, 40, 1, 40)]
    assert all(each.share == 1.0 and len(each.seconds) == 2 for each in mixed)
    jobs = [job for job in executor.launched if job.phase is Phase.MIXED]
    assert len(jobs) == len(mixed) * (grid.repeats + 1)
    rows = jobs[-1].rows
    assert rows.table_rows.tolist() == list(range(6))
    assert rows.starts.tolist() == [39] * 5 + [0]
    assert rows.counts.tolist() == [1] * 5 + [40]
    assert rows.samples.all()
    assert [each.row for each in jobs[-1].admissions] == [5]


def test_mixed_jobs_must_fit_the_token_budget() -> None:
    assert fits_mixed(lone_spec(token_budget=43), Point(1.0, 3, 40))
    assert not fits_mixed(lone_spec(token_budget=42), Point(1.0, 3, 40))
    assert not fits_mixed(padded_spec(1000), Point(1.0, 3, 40))
    assert not fits_mixed(spec_with_states(), Point(1.0, 3, 40))
    assert not fits_mixed(lone_spec(), Point(0.5, 3, 40))


def sent_ahead(spec: UnitSpec) -> UnitSpec:
    """`spec` with decode steps that are sent before the last one ends."""
    return replace(spec, scheduler=replace(spec.scheduler, pipeline_depth=2))


def test_a_decode_step_is_measured_behind_another_where_units_send_it_ahead() -> None:
    executor = FakeExecutor()
    measure(sent_ahead(lone_spec()), GRID, lambda point: None, executor)
    steps = [job for job in executor.launched if job.phase is Phase.DECODE]
    assert len(steps) == 4 * len(GRID.points()) * (GRID.repeats + 1)
    for place in range(0, len(steps), 4):
        series = steps[place : place + 4]
        assert [job.follows for job in series] == [None, *(job.job_id for job in series[:3])]
        assert len({int(job.rows.starts[0]) for job in series}) == 1
    assert len({job.job_id for job in executor.launched}) == len(executor.launched)


def test_steps_of_batches_that_go_on_are_measured_alone() -> None:
    for spec in (padded_spec(1000), spec_with_states()):
        executor = FakeExecutor()
        measure(sent_ahead(spec), GRID, lambda point: None, executor)
        assert all(job.follows is None for job in executor.launched)


def test_turns_of_steps_hold_what_sending_ahead_hides() -> None:
    executor = FakeExecutor()
    grid = Grid((1.0,), (1, 3), (5,), repeats=1)
    turns = measure_turns(sent_ahead(lone_spec()), executor, grid)
    assert [(turn.rows, turn.new) for turn in turns] == [(1, 0), (1, 1), (3, 0), (3, 3)]
    behind = [job for job in executor.launched if job.follows is not None]
    assert {len(job.rows) for job in behind} == {1, 3} and not any(j.admissions for j in behind)
    assert len({job.job_id for job in behind}) == len(behind)


def test_turns_are_measured_between_decodes_and_between_prompts() -> None:
    executor = FakeExecutor()
    turns = measure_turns(lone_spec(), executor, Grid((1.0,), (1, 3, 9), (5,), repeats=2))
    # the model has 8 slots
    assert [(turn.rows, turn.new) for turn in turns] == [(1, 0), (1, 1), (3, 0), (3, 3)]
    assert {len(turn.seconds) for turn in turns} == {16}
    assert all(min(turn.seconds) > 0 for turn in turns)
    kinds = [(job.phase, len(job.rows), len(job.admissions)) for job in executor.launched]
    decodes, prompts = (kinds.count((Phase.DECODE, 3, 0)), kinds.count((Phase.PREFILL, 3, 3)))
    assert decodes == 16 + 3
    assert prompts == 1 + 16 + 3 + 1


def test_a_lost_job_ends_the_measurement_of_turns() -> None:
    with pytest.raises(EngineFailure, match="killed by the test"):
        measure_turns(lone_spec(), FakeExecutor(["done", "failed"]), GRID)


@given(st.integers(1, 9), st.integers(1, 60), st.integers(1, 100))
def test_rows_cover_every_prompt_once_in_order(batch: int, tokens: int, budget: int) -> None:
    jobs = prompt_rows(batch, tokens, budget)
    seen = [0] * batch
    sampled = [0] * batch
    for rows in jobs:
        assert 0 < rows.counts.sum() <= budget
        for row, start, count, samples in zip(
            rows.table_rows, rows.starts, rows.counts, rows.samples, strict=True
        ):
            assert start == seen[row]
            seen[row] += count
            assert samples == (seen[row] == tokens)
            sampled[row] += samples
    assert all(rows.counts.sum() == budget for rows in jobs[:-1])
    assert seen == [tokens] * batch
    assert sampled == [1] * batch


@given(st.integers(1, 12), st.integers(1, 600), st.integers(4, 300))
def test_what_fits_is_what_the_cache_can_hold(batch: int, tokens: int, num_blocks: int) -> None:
    spec = lone_spec(num_blocks=num_blocks)
    point = Point(1.0, batch, tokens)
    if batch > spec.models[0].max_seqs or tokens > spec.models[0].max_model_len:
        assert not fits(spec, point)
        return
    try:
        (job, *_) = ProfileJobs(spec).prefill(point)
    except AssertionError:  # the cache is short of blocks
        assert not fits(spec, point)
    else:
        assert fits(spec, point)
        assert len(job.tables) == batch * -(-tokens // BLOCK)


def test_points_that_do_not_fit_are_left_out() -> None:
    grid = Grid((1.0,), (1, 9), (512, 513), repeats=1)
    spec = lone_spec(num_blocks=4 * 512 // BLOCK)
    cells = measure(spec, grid, lambda point: None, FakeExecutor()).cells
    assert {(cell.batch, cell.tokens) for cell in cells} == {(1, 512)}


def test_a_long_warm_up_counts_as_the_first_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "LONG_S", 0.0)
    executor = FakeExecutor()
    cells = measure(lone_spec(), GRID, lambda point: None, executor).cells
    assert all(len(cell.seconds) == GRID.repeats for cell in cells)
    launched = [job for job in executor.launched if job.phase is not Phase.MIXED]
    assert len(launched) == len(cells) * GRID.repeats


@pytest.mark.parametrize("fate", ["failed", "owner lost"])
def test_a_lost_job_ends_the_profile(fate: str) -> None:
    executor = FakeExecutor(["done", "done", fate])
    with pytest.raises(EngineFailure, match="killed by the test"):
        measure(lone_spec(), GRID, lambda point: None, executor)
    assert executor.is_closed


def test_no_block_leaks_between_points(monkeypatch: pytest.MonkeyPatch) -> None:
    caches: list[KvCache] = []
    init = KvCache.__init__

    def watched(cache: KvCache, *arguments: object) -> None:
        init(cache, *arguments)
        caches.append(cache)

    monkeypatch.setattr(KvCache, "__init__", watched)
    jobs = ProfileJobs(lone_spec())
    (cache,) = caches
    for point in GRID.points():
        jobs.prefill(point)
        jobs.decode(point)
        cache.check()
        assert cache.of("wide").used == point.batch * -(-point.tokens // BLOCK) * 4
        for _ in range(2):
            jobs.mixed(point, 2)
            cache.check()
            assert cache.of("wide").used == (point.batch + 2) * -(-point.tokens // BLOCK) * 4


def padded_spec(limit_bytes: int) -> UnitSpec:
    """As `lone_spec`, its model loaded with padded batches of a byte a token."""
    spec = lone_spec()
    padded = PaddedLimit(RowBytes(fixed=0, per_token=1), limit_bytes)
    return replace(spec, models=(replace(spec.models[0], padded=padded),))


def spec_with_states() -> UnitSpec:
    """As `lone_spec`, each sequence with a column of states before those of its tokens."""
    spec = lone_spec()
    return replace(spec, models=(replace(spec.models[0], state_columns=1),))


def test_sequences_with_states_have_columns_for_them() -> None:
    (job,) = ProfileJobs(spec_with_states()).prefill(Point(1.0, 2, SEVERAL_COLUMNS))
    entries = set(zip(job.tables.rows.tolist(), job.tables.columns.tolist(), strict=True))
    assert entries == {(row, column) for row in (0, 1) for column in (0, 1, 2, 3)}


def test_only_what_is_one_padded_batch_fits() -> None:
    spec = padded_spec(limit_bytes=80)
    assert fits(spec, Point(1.0, 2, 40))
    assert not fits(spec, Point(1.0, 3, 40))


@pytest.mark.parametrize("has_states", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 5, 40])
def test_decodes_of_a_batch_that_goes_on_are_each_one_token_ahead(
    tokens: int, has_states: bool
) -> None:
    """Else each would take a padded batch apart: its rows are where it left them, or are read
    again; and states would be computed anew."""
    spec = spec_with_states() if has_states else padded_spec(1000)
    point, jobs = Point(1.0, 2, tokens), ProfileJobs(spec)
    (prefill,) = jobs.prefill(point)
    starts = [int(jobs.decode(point).rows.starts[0]) for _ in range(30)]
    first = max(1, tokens - 9)
    assert starts[0] == first
    assert set(starts) == set(range(first, max(tokens, first + 1)))
    steps = [after - before for before, after in pairwise(starts)]
    assert all(step == 1 or start == first for step, start in zip(steps, starts[1:], strict=True))
    assert all(each.num_prompt_tokens <= first + 1 for each in prefill.admissions), "an output"
    jobs.prefill(point)
    assert jobs.decode(point).rows.starts.tolist() == [first, first]


def test_a_model_that_fits_no_point_once_loaded_is_refused() -> None:
    executor = FakeExecutor()
    limit = PaddedLimit(RowBytes(fixed=0, per_token=1), 4)
    model = lone_spec().models[0].name
    executor.backends = (ModelBackend(model, "dense", slab_blocks=128, padded=limit),)
    with pytest.raises(LoadError, match="no batch and length asked for fits"):
        measure(lone_spec(), GRID, lambda point: None, executor)
    assert executor.is_closed
