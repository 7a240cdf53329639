"""Decode steps that only repeat: while nothing else happens, they need no decisions.

A step is a decode job, or a mixed job without prompts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from muxcluster.core.job import Job, Phase, Rows
from muxcluster.kvcache.cache import KvCache
from muxcluster.kvcache.pool import Shortage
from muxcluster.scheduling.jobs import JobBuilder
from muxcluster.scheduling.lanes.view import Lane, LaneView, Repetition, turns_before
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.running import TableRows

_NO_ID = -1


class FastForward:
    """Says how often running jobs would be launched again unchanged, and makes it so.

    A step changes no decision when all rows that decode are in jobs, none of them ends, the lane
    would give each job its place again, quotas stand, and the blocks come from the free list:
    lengths grow, memory shrinks, so what could not be admitted before cannot be meanwhile.
    """

    def __init__(
        self,
        models: Mapping[str, ModelState],
        kv: KvCache,
        view: LaneView,
        lane: Lane,
        builder: JobBuilder,
        max_rows: int,
    ) -> None:
        """max_rows: of a job that decodes."""
        self._models = models
        self._kv = kv
        self._view = view
        self._lane = lane
        self._builder = builder
        self._max_rows = max_rows

    def limits(self, first: Job) -> dict[Job, int]:
        """Return how often each running job may end and be launched again; empty: none may.

        first: the running job that ends first: where it may not be repeated, no job is. Where
        models take turns, those that wait come after the one that runs, in turn, as jobs that are
        not launched yet.
        """
        view, lane = self._view, self._lane
        if first.phase is Phase.PREFILL or view.shares.is_exclusive:
            return {}
        waiting = [model for model in view.models if view.has_decode_work(model)]
        if (waiting and not lane.takes_turns) or self._steps_left(first) == 0:
            return {}
        jobs = [job for job in view.shares.running if job.phase is first.phase]
        if not (all(map(self._may_wait, waiting)) and all(map(self._is_plain, jobs))):
            return {}
        turns: list[ModelState] = []
        for job in jobs:
            before = turns_before(lane, view, job)
            if before is None:
                return {}
            turns += before
        if len(turns) != len(waiting):
            return {}
        jobs += [self._waiting(model, first) for model in turns]
        lefts = {job: self._steps_left(job) for job in jobs}
        longest = max(lefts.values())
        while longest and not self._has_blocks(lefts, longest):
            longest //= 2
        return {job: min(left, longest) for job, left in lefts.items()} if longest else {}

    def _waiting(self, model: ModelState, running: Job) -> Job:
        """The job that `model` will have at the place of the one that runs."""
        table, table_rows = model.running, model.running.idle_decoding()
        ones = np.ones(len(table_rows), dtype=np.int32)
        rows = Rows(table_rows, table.num_computed[table_rows], ones, ones == 1)
        return replace(running, job_id=_NO_ID, model=model.name, rows=rows, admissions=())

    @property
    def lets_in(self) -> bool:
        """True where a new request only waits, until a job ends that is not repeated.

        All sequences that decode are in jobs then, and no lane runs two prefill jobs at a time.
        """
        shares = self._view.shares
        if shares.is_exclusive or not shares.has_running(Phase.PREFILL):
            return False
        return not any(map(self._view.has_decode_work, self._view.models))

    def _may_wait(self, model: ModelState) -> bool:
        """True where all that a waiting model decodes will be in its next job."""
        table = model.running
        is_short = len(table.idle_decoding()) <= self._max_rows
        return is_short and not table.has_aborted and not model.has_suspects

    def _is_plain(self, job: Job) -> bool:
        """True where all of its rows decode one token, and none is known to be in trouble."""
        table, rows = self._models[job.model].running, job.rows.table_rows
        if job.max_steps > 1 or table.has_aborted or table.has_suspect(rows):
            return False
        return job.phase is Phase.DECODE or not (
            table.num_prefilling and bool(table.is_prefilling[rows].any())
        )

    def _steps_left(self, job: Job) -> int:
        """Steps until one of the rows ends, that one not counted, or gives blocks back."""
        model, table_rows = self._models[job.model], job.rows.table_rows
        table = model.running
        left = int((table.max_total[table_rows] - table.num_tokens[table_rows]).min()) - 1
        # Blocks that come free may let in what waits.
        before = model.kv.tokens_before_return(table_rows, table.num_computed[table_rows])
        return left if before is None else min(left, before)

    def _has_blocks(self, lefts: Mapping[Job, int], longest: int) -> bool:
        """True where free and cached blocks, within the quotas, carry all through so many steps."""
        # Nothing is cached or found meanwhile: one large eviction takes what small ones would.
        steps = [(job, min(left, longest)) for job, left in lefts.items()]
        return self._fits({job: self._most_lacking(job, count) for job, count in steps}) or (
            self._fits({job: self._lacking(job, count) for job, count in steps})
        )

    def _fits(self, lacks: Mapping[Job, int]) -> bool:
        kv = self._kv
        within_quotas = all(
            lack <= self._models[job.model].kv.headroom() for job, lack in lacks.items()
        )
        return within_quotas and sum(lacks.values()) <= kv.free + kv.evictable

    def _most_lacking(self, job: Job, num_steps: int) -> int:
        """No fewer than `_lacking`, without a look at the rows."""
        return len(job.rows) * self._models[job.model].blocks(num_steps + 1)

    def _lacking(self, job: Job, num_steps: int) -> int:
        table_rows = job.rows.table_rows
        model = self._models[job.model]
        lengths = model.running.num_computed[table_rows] + np.int32(1 + num_steps)
        return model.kv.lack(table_rows, lengths)

    def repeat(self, repetitions: Sequence[Repetition]) -> list[Job]:
        """Change all state as those steps would, each row getting tokens of id 0.

        Returns the jobs that run now, or ran last, in the same order.
        """
        launches = [(each.job, each.order) for each in repetitions]
        first_id = self._builder.skip(self._view.count_repeated(launches))
        return [self._repeat(each, first_id + each.order) for each in repetitions]

    def _repeat(self, done: Repetition, job_id: int) -> Job:
        job, count = done.job, done.count
        model, rows = self._models[job.model], job.rows
        table, table_rows = model.running, rows.table_rows
        if not done.is_running:
            table.end_job(table_rows, are_decoding=True)
        elif not table.in_job[table_rows[0]]:  # its turn came meanwhile
            table.start_job(table_rows)
        if count:
            self._write(model, rows, done)
        if done.is_running:
            self._grow(model, table_rows, table.num_tokens[table_rows])
        again = Job(
            job_id=job_id,
            model=job.model,
            phase=job.phase,
            worker_id=job.worker_id,
            share=job.share,
            rows=Rows(table_rows, rows.starts + np.int32(count), rows.counts, rows.samples),
            tables=model.kv.tables(table_rows[:0]),
        )
        if done.is_running:
            self._view.shares.replace(again, done.start_s)
        return again

    def _write(self, model: ModelState, rows: Rows, done: Repetition) -> None:
        table, table_rows = model.running, rows.table_rows
        table.append_zeros(table_rows, done.count, done.end_s, done.running_s)
        model.counters.output_tokens += done.count * len(table_rows)
        lengths = table.num_computed[table_rows]
        used = model.kv.used + model.kv.lack(table_rows, lengths)
        model.peak_blocks = max(model.peak_blocks, used)
        if not done.is_running:
            self._grow(model, table_rows, lengths)

    def _grow(self, model: ModelState, table_rows: TableRows, lengths: TableRows) -> None:
        grown = model.kv.grow(table_rows, lengths)
        assert not isinstance(grown, Shortage), "repeated beyond the limits"
