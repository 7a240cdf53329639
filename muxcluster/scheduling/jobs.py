"""Makes the job that a worker gets from a batch, and leaves out rows that ended meanwhile."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Admission, Job, JobResult, Phase, Rows, SharedPrefixes, TableDelta
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.packing.batch import Batch
from muxcluster.scheduling.shares import Place
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.running import TableRows


class JobBuilder:
    """Numbers jobs and describes their rows, table changes and admissions."""

    def __init__(self, *, saves: bool = False) -> None:
        """saves: sequences lend blocks, and what a job overwrites there must be saved."""
        self._saves = saves
        self.next_id = 0  # of the next job

    def skip(self, num_ids: int) -> int:
        """Skip so many ids; return the first of them."""
        first = self.next_id
        self.next_id += num_ids
        return first

    def build(self, model: ModelState, phase: Phase, place: Place, batch: Batch, now: float) -> Job:
        """Return the job of `batch` (not empty); its sequences count as running from now on."""
        table = model.running
        rows = batch.rows
        starts = table.num_computed[rows]
        if phase is Phase.DECODE:  # each row's last known token
            samples = np.ones(len(rows), dtype=np.bool_)
        else:
            known = batch.counts if batch.drafts is None else batch.counts - batch.drafts.counts
            samples = starts + known == table.num_tokens[rows]
        if model.kv.slides:
            has_blocks = starts + batch.counts <= model.kv.capacity[rows]
            assert has_blocks.all(), "a job computes tokens that have no blocks"
        table.start_job(rows)
        copies = batch.copies
        if copies is None:
            ends = starts + batch.counts + np.int32(batch.max_steps - 1)
            copies = model.kv.lending.saves(rows, ends, self.next_id) if self._saves else ()
        return Job(
            job_id=self.skip(1),
            model=model.name,
            phase=phase,
            worker_id=place.worker_id,
            share=place.share,
            rows=Rows(
                rows,
                starts,
                batch.counts,
                samples,
                self._prefixes(model, rows, batch.counts),
                batch.drafts,
            ),
            tables=self._tables(model, batch),
            admissions=tuple([self._admission(model, row, now) for row in batch.admitted]),
            max_steps=batch.max_steps,
            copies=copies,
        )

    def follow(
        self,
        job: Job,
        model: ModelState,
        rows: TableRows,
        starts: NDArray[np.int32],
        grown: TableDelta,
    ) -> Job:
        """Return the job that goes on from `job` with `rows`, which are in it, from `starts` on.

        grown: their new table entries.
        """
        counts, samples = job.rows.counts[: len(rows)], job.rows.samples[: len(rows)]
        prefixes = self._prefixes(model, rows, counts)
        return Job(
            job_id=self.skip(1),
            model=job.model,
            phase=job.phase,
            worker_id=job.worker_id,
            share=job.share,
            rows=Rows(rows, starts, counts, samples, prefixes),
            tables=grown,
            follows=job.job_id,
        )

    def _prefixes(
        self, model: ModelState, rows: TableRows, counts: NDArray[np.int32]
    ) -> SharedPrefixes | None:
        """What the rows of one token share; longer ones read for many tokens at once anyway."""
        is_single = counts == 1
        if is_single.all():
            return model.kv.shared_prefixes(rows)
        found = model.kv.shared_prefixes(rows[is_single])
        if found is None:
            return None
        leaders, tokens = rows.copy(), np.zeros(len(rows), dtype=np.int32)
        leaders[is_single], tokens[is_single] = found.leaders, found.tokens
        return SharedPrefixes(leaders, tokens)

    def _tables(self, model: ModelState, batch: Batch) -> TableDelta:
        """Whole tables of admitted rows (a prefix may be attached), new entries of the others."""
        whole = self._whole(model, batch)
        if batch.grown is not None and not len(whole):
            return batch.grown
        admitted = model.kv.tables(whole)
        if batch.grown is None or len(batch.grown) == 0:
            return admitted
        if len(admitted) == 0:
            return batch.grown
        return TableDelta(
            _joined(batch.grown.rows, admitted.rows),
            _joined(batch.grown.columns, admitted.columns),
            _joined(batch.grown.blocks, admitted.blocks),
        )

    def _whole(self, model: ModelState, batch: Batch) -> TableRows:
        """Rows whose tables are sent whole: admitted ones, and prompts that may have slid."""
        admitted = np.array(batch.admitted, dtype=np.int32)
        if not model.kv.slides:
            return admitted
        return np.union1d(admitted, batch.rows[model.running.is_prefilling[batch.rows]])

    def _admission(self, model: ModelState, row: int, now: float) -> Admission:
        live = model.running.at(row)
        if not live.account.has_started:
            self._count_first(model, row)
        live.account.launch(now)
        return Admission(
            row=row,
            request_id=live.request.request_id,
            tokens=model.running.tokens(row),
            num_prompt_tokens=live.num_prompt,
            sampling=live.request.sampling,
            side=live.side,
            adapter=live.request.adapter,
            adapter_path=live.request.adapter_path,
            adapter_place=model.places.of(row),
            images=live.request.images,
        )

    def _count_first(self, model: ModelState, row: int) -> None:
        live = model.running.at(row)
        live.num_cached_tokens = min(int(model.running.num_computed[row]), live.num_prompt)
        if model.uses_prefixes(live):
            model.counters.prefix_queries += live.num_prompt
            model.counters.prefix_hits += live.num_cached_tokens


def without_ended(memory: Memory, model: ModelState, job: Job) -> Job:
    """Return `job`, which ended, without rows whose sequences ended before; free their table rows.

    The job itself where there were none.
    """
    table, rows = model.running, job.rows
    if not table.num_written:
        return job
    is_over = table.is_written[rows.table_rows]
    if not is_over.any():
        return job
    for row in rows.table_rows[is_over].tolist():
        memory.end_writes(model, row)
    kept = ~is_over
    drafts = None if rows.drafts is None else rows.drafts.of(kept)
    left = Rows(
        rows.table_rows[kept],
        rows.starts[kept],
        rows.counts[kept],
        rows.samples[kept],
        drafts=drafts,
    )
    return replace(job, rows=left)


def result_without_ended(job: Job, left: Job, result: JobResult) -> JobResult:
    """Return the result of `job` for the rows of `left` alone."""
    if left is job:
        return result
    kept: NDArray[np.bool_] = np.isin(job.rows.table_rows, left.rows.table_rows)
    places = dict(zip(kept.nonzero()[0].tolist(), range(len(left.rows)), strict=True))
    return replace(
        result,
        tokens=result.tokens[kept.repeat(result.counts)],
        counts=result.counts[kept],
        logprobs={places[row]: each for row, each in result.logprobs.items() if row in places},
        prompt_logprobs={
            places[row]: each for row, each in result.prompt_logprobs.items() if row in places
        },
        broken_rows=tuple(places[row] for row in result.broken_rows if row in places),
        refused_rows={
            places[row]: why for row, why in result.refused_rows.items() if row in places
        },
        vectors={places[row]: each for row, each in result.vectors.items() if row in places},
    )


def _joined(first: NDArray[np.int32], second: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.concatenate((first, second))
