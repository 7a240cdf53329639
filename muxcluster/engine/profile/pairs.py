"""Measures how much a prefill and a decode slow each other, side by side on parts of the SMs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

from muxcluster.core.backends import as_loaded
from muxcluster.core.job import Job, WorkerSpec
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.engine.dense.places import num_batches
from muxcluster.engine.executor import Executor, JobDone
from muxcluster.engine.profile.grid import Grid, Point, fits
from muxcluster.engine.profile.jobs import JobTarget, ProfileJobs, ProfileState
from muxcluster.engine.profile.model import run_jobs, samples_of, warm_up_decode
from muxcluster.engine.profile.outcomes import check_outcome
from muxcluster.engine.unit.executor_choice import make_executor
from muxcluster.placement.cost import Pair, PairedJob

MOST_SAMPLES = 64  # most samples of the quicker of two jobs, while the slower one takes its own
_PREFILLS, _DECODES = 0, 1  # worker ids


@dataclass(frozen=True, slots=True)
class PairPoint:
    """A prefill of one model beside decode steps of another (or the same)."""

    prefill_model: str
    prefill: Point
    decode_model: str
    decode: Point


def pair_points(specs: Sequence[UnitSpec], grid: Grid) -> tuple[PairPoint, ...]:
    """Return every two models of `specs` at every two shares of the grid that add up to the whole.

    specs: units of one model each. A point is the grid's longest prompt, one at a time, beside its
    greatest batch of its longest contexts, as far as they fit. Decodes of models with states are
    not timed beside others: their steps cannot be repeated.
    """
    splits = [
        (share, rest)
        for share, rest in product(grid.shares, grid.shares)
        if abs(share + rest - 1) < 1e-6
    ]
    return tuple(
        PairPoint(one.models[0].name, prefill, other.models[0].name, decode)
        for one, other in product(
            specs, [each for each in specs if not each.models[0].state_columns]
        )
        for share, rest in splits
        if (prefill := _largest(specs, one, share, replace(grid, batches=(1,)))) is not None
        and (decode := _largest(specs, other, rest, grid)) is not None
        and _have_rows(one, prefill, other, decode)
    )


def _largest(specs: Sequence[UnitSpec], spec: UnitSpec, share: float, grid: Grid) -> Point | None:
    """Return the largest point that fits `spec`, leaving enough blocks for its slab."""
    points = [Point(share, batch, tokens) for batch, tokens in product(grid.batches, grid.lengths)]
    shares = len(grid.shares)
    found = [
        point
        for point in points
        if fits(spec, point) and _slab_blocks(specs, spec, point, shares) <= spec.num_blocks
    ]
    return max(found, key=lambda point: (point.batch, point.tokens), default=None)


def _have_rows(one: UnitSpec, prefill: Point, other: UnitSpec, decode: Point) -> bool:
    model = one.models[0]
    return model.name != other.models[0].name or prefill.batch + decode.batch <= model.max_seqs


def paired_spec(specs: Sequence[UnitSpec], points: Sequence[PairPoint]) -> UnitSpec:
    """Return a unit of all the models, with a worker for prefills, one for decodes, and a KV pool.

    The pool is just large enough; with padded batches it is twice as large, as their slabs may take
    half of it. specs: as loaded.
    """
    first = specs[0]
    shares = {point.prefill.share for point in points} | {point.decode.share for point in points}
    rungs = tuple(sorted(shares))
    num_blocks = max(_blocks(specs, point) for point in points)
    slab = max(
        _slab_blocks(specs, spec, each, len(rungs))
        for spec in specs
        for each in _points_of(spec.models[0].name, points)
    )
    return replace(
        first,
        models=tuple(_as_short_as(spec.models[0], points) for spec in specs),
        num_blocks=2 * max(num_blocks, slab) if slab else num_blocks,
        workers=(WorkerSpec(_PREFILLS, rungs), WorkerSpec(_DECODES, rungs)),
        num_host_blocks=0,
    )


def _points_of(model: str, points: Sequence[PairPoint]) -> list[Point]:
    prefills = [each.prefill for each in points if each.prefill_model == model]
    return prefills + [each.decode for each in points if each.decode_model == model]


def _as_short_as(model: ModelSpec, points: Sequence[PairPoint]) -> ModelSpec:
    """Return `spec` with the longest of `points` as longest sequence, which a slab must hold."""
    if model.padded is None:
        return model
    return replace(model, max_model_len=1 + max(p.tokens for p in _points_of(model.name, points)))


def _slab_blocks(specs: Sequence[UnitSpec], spec: UnitSpec, point: Point, num_shares: int) -> int:
    """Return blocks of half a pool whose even part holds the padded batches of `point`.

    0 if no batch is padded. num_shares: rungs of each of the two workers.
    """
    padded = spec.models[0].padded
    if padded is None:
        return 0
    rungs = (1.0,) * num_shares
    batches = num_batches(replace(spec, workers=(WorkerSpec(0, rungs), WorkerSpec(1, rungs))))
    num_bytes = batches * padded.row_bytes.of(point.batch, point.tokens + 1)
    return len(specs) * -(-num_bytes // spec.block_bytes)


def _blocks(specs: Sequence[UnitSpec], point: PairPoint) -> int:
    sides = ((point.prefill_model, point.prefill), (point.decode_model, point.decode))
    models = {spec.models[0].name: spec.models[0] for spec in specs}
    block_bytes = specs[0].block_bytes
    return sum(
        each.batch
        * _columns(models[name], each.tokens, block_bytes)
        * models[name].shape.blocks_per_column
        for name, each in sides
    )


def _columns(model: ModelSpec, num_tokens: int, block_bytes: int) -> int:
    """Return the columns of a sequence of so many tokens."""
    return model.state_columns + -(-num_tokens // model.shape.block_tokens(block_bytes))


def measure_pairs(
    spec: UnitSpec,
    points: Sequence[PairPoint],
    repeats: int,
    on_point: Callable[[PairPoint], None],
    executor: Executor | None = None,
) -> tuple[Pair, ...]:
    """Measure each point alone and side by side. spec: as `paired_spec` makes it.

    Seconds are from launching to the outcome, as in `profile.model.measure`, which also describes
    `on_point`, `executor` and what is raised.
    """
    executor = executor or make_executor(spec)
    try:
        executor.start()
        spec = as_loaded(spec, executor.backends)
        found = []
        for point in points:
            found.append(pair_at(executor, spec, point, repeats))
            on_point(point)
        return tuple(found)
    finally:
        executor.close()


def pair_at(executor: Executor, spec: UnitSpec, point: PairPoint, repeats: int) -> Pair:
    """Measure one point on an executor of `spec` that has started. Raises as `measure_pairs`."""
    state = ProfileState(spec)
    prefills = ProfileJobs(spec, JobTarget(point.prefill_model, _PREFILLS), state)
    target = JobTarget(point.decode_model, _DECODES, first_row=point.prefill.batch)
    decodes = ProfileJobs(spec, target, state)
    run_jobs(executor, decodes.prefill(point.decode))
    warm_up_decode(executor, decodes, point.decode)
    turns = (
        _RepeatedJobs(lambda: prefills.prefill(point.prefill)),
        _RepeatedJobs(lambda: [decodes.decode(point.decode)]),
    )
    alone = [samples_of(repeats, partial(_turn_alone, executor, turn)) for turn in turns]
    _side_by_side(executor, turns, repeats)
    sides = zip((point.prefill, point.decode), alone, turns, strict=True)
    names = (point.prefill_model, point.decode_model)
    jobs = [
        PairedJob(name, each.share, each.batch, each.tokens, seconds, tuple(turn.seconds))
        for name, (each, seconds, turn) in zip(names, sides, strict=True)
    ]
    return Pair(1, *jobs)


@dataclass(slots=True)
class _RepeatedJobs:
    jobs: Callable[[], Sequence[Job]]  # the jobs of one turn, in order
    # seconds of the turns that ended, without the first: its neighbour began later
    seconds: list[float] = field(default_factory=list)
    num_ended: int = 0
    _left: list[Job] = field(default_factory=list)
    _running: int = -1
    _started_s: float = 0.0

    def begin(self, executor: Executor) -> None:
        self._left = list(self.jobs())
        self._started_s = time.perf_counter()
        self._launch(executor)

    def is_running(self, job_id: int) -> bool:
        return job_id == self._running

    def go_on(self, executor: Executor) -> bool:
        """After a job ended: launch the turn's next one; return False if that was the last."""
        if self._left:
            self._launch(executor)
            return True
        return False

    def count(self) -> None:
        """Record the turn that ended, unless it was the first: its neighbour began later."""
        self.num_ended += 1
        if self.num_ended > 1 and len(self.seconds) < MOST_SAMPLES:
            self.seconds.append(time.perf_counter() - self._started_s)

    def _launch(self, executor: Executor) -> None:
        job = self._left.pop(0)
        self._running = job.job_id
        executor.launch(job)


def _turn_alone(executor: Executor, turn: _RepeatedJobs) -> float:
    return run_jobs(executor, turn.jobs())


def _side_by_side(executor: Executor, turns: Sequence[_RepeatedJobs], repeats: int) -> None:
    """Repeat both until each has its samples; then let both end."""
    for turn in turns:
        turn.begin(executor)
    num_running = len(turns)
    while num_running:
        for outcome in executor.wait(None):
            check_outcome(outcome)
            if not isinstance(outcome, JobDone):
                continue
            turn = next(each for each in turns if each.is_running(outcome.result.job_id))
            if turn.go_on(executor):
                continue
            if num_running == len(turns):
                turn.count()
            if min(len(each.seconds) for each in turns) < repeats:
                turn.begin(executor)
            else:
                num_running -= 1
