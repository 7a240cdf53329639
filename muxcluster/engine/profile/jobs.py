"""Makes jobs of a known size as the scheduler makes them: blocks, tables, admissions, rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Admission, Job, Phase, Rows, TableDelta
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.profile.grid import Point
from muxcluster.kvcache.cache import KvCache
from muxcluster.kvcache.model import KvModel
from muxcluster.kvcache.pool import Shortage

_FORMING_STEPS = 2
_STEPS_AHEAD = 8  # steps of a batch that goes on, before it begins again at its first context
_GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


class ProfileState:
    """What all jobs of a unit have in common: the owner of each block, and the next job's id."""

    def __init__(self, spec: UnitSpec) -> None:
        models = tuple(
            KvModel(
                model.name,
                model.shape,
                model.max_seqs,
                model.max_model_len,
                prefix_caching=False,
                state_columns=model.state_columns,
            )
            for model in spec.models
        )
        self.kv = KvCache(spec.num_blocks, spec.block_bytes, models, {})
        self.ids = count()


@dataclass(frozen=True, slots=True)
class JobTarget:
    """The model of jobs, where they run, and the first of the model's rows that they use."""

    model: str
    worker_id: int
    first_row: int = 0


class ProfileJobs:
    """Jobs of one model for one worker.

    sends_ahead: decode steps are sent behind others. ids: of further jobs. Invariant: n rows from
    the first on are open, where n is the batch of the last `prefill`; after a `mixed` those of its
    prompts, too.
    """

    def __init__(
        self, spec: UnitSpec, target: JobTarget | None = None, state: ProfileState | None = None
    ) -> None:
        """target: by default the only model on its first worker. state: shared with other jobs."""
        if target is None:
            (only,) = spec.models
            target = JobTarget(only.name, spec.workers[0].worker_id)
        state = state or ProfileState(spec)
        self._target = target
        self._model = next(model for model in spec.models if model.name == target.model)
        self._budget = spec.scheduler.token_budget
        self._kv, self.ids = state.kv.of(self._model.name), state.ids
        self._open: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self._beside = self._open  # rows of the prompts in the last `mixed`
        self._random = np.random.default_rng(self._model.seed)
        self._num_decodes = 0
        # A padded batch is formed again every few steps, states are computed again, and nothing can
        # be sent behind that.
        self._goes_on = self._model.padded is not None or self._model.state_columns > 0
        self.sends_ahead = spec.scheduler.pipeline_depth > 1 and not self._goes_on

    @property
    def num_forming_steps(self) -> int:
        """Decodes after a prefill that take longer than those that follow."""
        return _FORMING_STEPS if self._goes_on else 0

    def prefill(self, point: Point) -> list[Job]:
        """Replace the last prompts by random new ones, in as few jobs as the token budget allows.

        `point` must fit (`grid.fits`).
        """
        self._num_decodes = 0
        rows = self._reopen(point.batch)
        tables = self._grow(rows, point.tokens)
        admissions = tuple(self._admission(row, point.tokens) for row in rows.tolist())
        first, *others = self._prompt_rows(point)
        jobs = [self._job(Phase.PREFILL, point.share, first, tables, admissions)]
        nothing = self._grow(rows, point.tokens)
        jobs += (self._job(Phase.PREFILL, point.share, rows, nothing) for rows in others)
        return jobs

    def decode(self, point: Point) -> Job:
        """Return one step of the sequences of the last `prefill` of the same batch and length.

        Each row attends to `point.tokens` tokens, its own included. In a padded batch, which stays
        together only if every step goes one token ahead, and with states, which go no other way, it
        attends to some fewer: the last of `_STEPS_AHEAD` + 1 steps attends to so many.
        """
        table_rows = self._open
        last = point.tokens - 1
        start = last
        if self._goes_on:
            first = max(1, last - _STEPS_AHEAD)
            start = first + self._num_decodes % max(1, last - first + 1)
        self._num_decodes += 1
        rows = Rows(
            table_rows=table_rows,
            starts=np.full_like(table_rows, start),
            counts=np.ones_like(table_rows),
            samples=np.ones(len(table_rows), dtype=np.bool_),
        )
        return self._job(Phase.DECODE, point.share, rows, self._grow(table_rows, point.tokens))

    def mixed(self, point: Point, prompts: int) -> Job:
        """Return a step of the same sequences beside `prompts` new prompts of `point.tokens`.

        The point must fit (`grid.fits_mixed`).
        """
        self._close(self._beside)
        size = len(self._open)
        self._beside = beside = self._open[0] + np.arange(size, size + prompts, dtype=np.int32)
        for row in beside.tolist():
            self._kv.open(row, ())
        rows = Rows(
            table_rows=np.concatenate((self._open, beside)),
            starts=np.repeat(np.array((point.tokens - 1, 0), np.int32), (size, prompts)),
            counts=np.repeat(np.array((1, point.tokens), np.int32), (size, prompts)),
            samples=np.ones(size + prompts, dtype=np.bool_),
        )
        tables = self._grow(beside, point.tokens)
        admissions = tuple(self._admission(row, point.tokens) for row in beside.tolist())
        return self._job(Phase.MIXED, point.share, rows, tables, admissions)

    def _close(self, table_rows: NDArray[np.int32]) -> None:
        for row in table_rows.tolist():
            self._kv.close(row)

    def _reopen(self, batch: int) -> NDArray[np.int32]:
        self._close(self._open)
        self._close(self._beside)
        self._beside = self._open[:0]
        self._open = np.arange(batch, dtype=np.int32) + np.int32(self._target.first_row)
        for row in self._open.tolist():
            self._kv.open(row, ())
        return self._open

    def _prompt_rows(self, point: Point) -> Sequence[Rows]:
        rows = prompt_rows(point.batch, point.tokens, self._budget)
        first = np.int32(self._target.first_row)
        return [replace(each, table_rows=each.table_rows + first) for each in rows]

    def _grow(self, rows: NDArray[np.int32], tokens: int) -> TableDelta:
        grown = self._kv.grow(rows, np.full_like(rows, tokens))
        assert not isinstance(grown, Shortage), "a point that does not fit"
        return grown

    def _admission(self, row: int, tokens: int) -> Admission:
        prompt = self._random.integers(self._model.vocab_size, size=tokens, dtype=np.int32)
        # decodes that go on begin before its end, and only outputs are sampled
        num_prompt = max(1, tokens - _STEPS_AHEAD) if self._goes_on else tokens
        return Admission(row, f"profile-{row}", prompt, num_prompt, _GREEDY)

    def _job(
        self,
        phase: Phase,
        share: float,
        rows: Rows,
        tables: TableDelta,
        admissions: tuple[Admission, ...] = (),
    ) -> Job:
        return Job(
            job_id=next(self.ids),
            model=self._model.name,
            phase=phase,
            worker_id=self._target.worker_id,
            share=share,
            rows=rows,
            tables=tables,
            admissions=admissions,
        )


def prompt_rows(batch: int, tokens: int, budget: int) -> Sequence[Rows]:
    """Return `batch` prompts of `tokens` tokens on rows 0, 1, ..., cut into jobs of `budget`.

    First come, first served: each job but the last is full, and a prompt may span several.
    """
    total = batch * tokens
    jobs = []
    for begin in range(0, total, budget):
        end = min(begin + budget, total)
        rows = np.arange(begin // tokens, -(-end // tokens), dtype=np.int32)
        starts = np.maximum(begin - rows * tokens, 0).astype(np.int32)
        ends = np.minimum(end - rows * tokens, tokens).astype(np.int32)
        jobs.append(Rows(rows, starts, ends - starts, samples=ends == tokens))
    return jobs
