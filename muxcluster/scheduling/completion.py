"""What a job that ran changes: tokens, ends and published prefixes, vectorised over its rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.errors import ConstraintFailed, NonFiniteLogits
from muxcluster.core.events import Event, FinishReason, StepOutput
from muxcluster.core.job import DraftTokens, Job, JobResult, Phase, Rows, TokenLogprobs
from muxcluster.core.request import Request, ServiceClass
from muxcluster.scheduling.jobs import result_without_ended, without_ended
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.state.model import Held, ModelState
from muxcluster.scheduling.state.requests import LiveRequest
from muxcluster.scheduling.state.running import RunningTable, TableRows

_NO_TOKENS: NDArray[np.int32] = np.empty(0, dtype=np.int32)
Logprobs = Mapping[int, tuple[TokenLogprobs, ...]]


def events_only(events: Sequence[Event]) -> StepOutput:
    """Return an output without tokens."""
    return StepOutput((), _NO_TOKENS, _NO_TOKENS, {}, {}, tuple(events))


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Output tokens of a job after the stop rules."""

    kept: NDArray[np.int32]  # int32 [rows], tokens of each
    tokens: NDArray[np.int32]  # int32 [sum(kept)]
    is_stopped: NDArray[np.bool_] | None = None  # bool [rows], the last kept one is an end token
    width: int | None = None  # tokens of every row, where that is one number and nothing was cut
    has_ends: bool = True  # False where no request ends with these tokens


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a row's request ends with an error: fields of its `Finished`."""

    code: str
    message: str


class Completion:
    """Applies the results of jobs to their model's sequences."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def succeed(
        self,
        model: ModelState,
        job: Job,
        result: JobResult,
        now: float,
        follower: Job | None = None,
    ) -> StepOutput:
        """Turn tokens of `result` into output and end requests that reached their end.

        Python runs per row only for rows that prefill, end, or report log-probabilities. follower:
        the job that its rows are in from now on: table row and blocks of a request that ends stay
        taken until that has ended, too.
        """
        assert len(result.counts) == len(job.rows), "a result has other rows than its job"
        if model.scaling is not None and result.padded is not None:
            model.scaling.observe(result.padded)
        if job.rows.prefixes is not None:
            model.counters.num_shared_reads += job.rows.prefixes.num_saved * job.max_steps
        whole, job = job, without_ended(self._memory, model, job)
        if not len(job.rows):
            return events_only([])
        result = result_without_ended(whole, job, result)
        table, table_rows, counts = model.running, job.rows.table_rows, result.counts
        faults = self._break_off(model, job, result)
        if result.mask_wait_s:
            table.add_mask_wait(table_rows, result.mask_wait_s)
            model.counters.mask_wait_s += result.mask_wait_s
        is_wrong = (counts > 0) != job.rows.samples
        assert not np.count_nonzero(is_wrong), "a row that samples yields no token"
        if follower is None:
            table.end_job(table_rows, are_decoding=job.phase is Phase.DECODE)
        elif len(follower.rows) < len(table_rows):
            table.end_job(np.setdiff1d(table_rows, follower.rows.table_rows))
        done = cut(table, table_rows, result.tokens, counts, model.spec.eos_token_ids)
        # Where only tokens are counted, no driver reads the rows of a decode job.
        is_named = table.keeps_output or job.phase is not Phase.DECODE
        request_ids = table.request_ids[table_rows.astype(np.intp)].tolist() if is_named else []
        prompt_logprobs = self._new_prompt_logprobs(table.live, job, result.prompt_logprobs)
        if job.rows.drafts is not None:
            _count_drafts(model, job.rows, job.rows.drafts, done.kept)
        self._write(model, job, done, now)
        if job.phase is not Phase.DECODE:
            self._end_chunks(model, job, done, now)
        events = self._end_rows(model, job, done, now, faults) if done.has_ends else []
        self._memory.give_back(model, table_rows)
        model.counters.output_tokens += len(done.tokens)
        return StepOutput(
            request_ids,
            done.tokens,
            done.kept,
            _cut_logprobs(result.logprobs, done.kept),
            prompt_logprobs,
            tuple(events),
            {row: each for row, each in result.vectors.items() if done.kept[row]},
        )

    def _break_off(self, model: ModelState, job: Job, result: JobResult) -> Mapping[int, Fault]:
        """Return why rows end whose tokens are noise; they keep no token."""
        table = model.running
        faults = {
            row: Fault(ConstraintFailed.code, why) for row, why in result.refused_rows.items()
        }
        message = f"{model.name} computed NaN or infinite logits for this request"
        faults.update(dict.fromkeys(result.broken_rows, Fault(NonFiniteLogits.code, message)))
        faults = {
            row: fault
            for row, fault in faults.items()
            if not table.is_aborted[job.rows.table_rows[row]]
        }
        for row, fault in faults.items():
            table.abort(int(job.rows.table_rows[row]))
            model.counters.num_non_finite += fault.code == NonFiniteLogits.code
        return faults

    def _write(self, model: ModelState, job: Job, done: Cut, now: float) -> None:
        table, rows = model.running, job.rows
        if done.width == job.max_steps:
            table.append(rows.table_rows, done.tokens, done.width, now)
            return
        computed, more = rows.ends, np.maximum(done.kept - 1, 0)
        if job.max_steps > 1:
            # Each step after the first computes the token sampled before it.
            computed = computed + more
        else:
            num_more = int(more.sum())
            if rows.drafts is not None:
                accepted = np.where(rows.drafts.counts > 0, more, 0)
                computed = computed + accepted  # as drafts, which they were
                num_more -= int(accepted.sum())
            model.counters.num_forced += num_more  # the next job computes them
        table.append_some(rows.table_rows, done.tokens, done.kept, computed, now)

    def _end_chunks(self, model: ModelState, job: Job, done: Cut, now: float) -> None:
        """Publish prompt columns; rows that sampled decode from now on."""
        table = model.running
        if not table.num_prefilling:
            return
        chunks = table.is_prefilling[job.rows.table_rows]
        if table.has_aborted:
            chunks &= ~table.is_aborted[job.rows.table_rows]
        for row in chunks.nonzero()[0].tolist():
            table_row = int(job.rows.table_rows[row])
            self._memory.publish(model, table_row)
            if done.kept[row] == 0:
                continue
            table.end_prefill(table_row)
            live = table.at(table_row)
            live.account.sample(now)
            if not live.has_sampled:
                live.has_sampled = True
                model.counters.prompt_tokens += live.num_prompt

    def _end_rows(
        self, model: ModelState, job: Job, done: Cut, now: float, faults: Mapping[int, Fault]
    ) -> list[Event]:
        table, table_rows = model.running, job.rows.table_rows
        is_ending = table.num_tokens[table_rows] >= table.max_total[table_rows]
        if table.has_aborted:
            is_ending |= table.is_aborted[table_rows]
        if done.is_stopped is not None:
            is_ending |= done.is_stopped
        events: list[Event] = []
        ending = is_ending.nonzero()[0].tolist()
        if not ending:
            return events
        is_aborted = table.is_aborted[table_rows] if table.has_aborted else None
        ends = done.kept.cumsum()
        for row in ending:
            table_row = int(table_rows[row])
            is_written = bool(table.in_job[table_row])  # by the follower
            live = self._memory.release(
                model, table_row, is_trusted=row not in faults, is_written=is_written
            )
            model.end_turn(live)
            if row in faults:
                code, message = faults[row].code, faults[row].message
                events.append(live.finished(FinishReason.ERROR, now, code=code, message=message))
                continue
            reason, stop_token = FinishReason.LENGTH, None
            if is_aborted is not None and is_aborted[row]:
                reason = FinishReason.ABORT
            elif done.is_stopped is not None and done.is_stopped[row]:
                reason, stop_token = FinishReason.STOP, int(done.tokens[ends[row] - 1])
            ended = live.finished(reason, now, stop_token=stop_token)
            is_interactive = live.request.service_class is ServiceClass.INTERACTIVE
            if is_interactive and reason is not FinishReason.ABORT:
                held = Held(live.account.held_s(now), len(live.output))
                model.meter.end(live.num_prompt, held)
            events.append(ended)
        return events

    def _new_prompt_logprobs(
        self, sequences: Sequence[LiveRequest | None], job: Job, logprobs: Logprobs
    ) -> Logprobs:
        """Return entries not reported before a preemption; those of aborted rows are dropped."""
        fresh: dict[int, tuple[TokenLogprobs, ...]] = {}
        for row, entries in logprobs.items():
            live = sequences[job.rows.table_rows[row]]
            assert live is not None
            start = int(job.rows.starts[row])
            if entries := entries[max(0, live.num_prompt_logprobs - start) :]:
                fresh[row] = entries
                live.num_prompt_logprobs = max(start, live.num_prompt_logprobs) + len(entries)
        return fresh


def _cut_logprobs(logprobs: Logprobs, kept: NDArray[np.int32]) -> Logprobs:
    return {row: entries[: kept[row]] for row, entries in logprobs.items() if kept[row]}


def _count_drafts(
    model: ModelState, rows: Rows, drafts: DraftTokens, kept: NDArray[np.int32]
) -> None:
    """Count what became of drafts. kept: int32 [rows], tokens of the output."""
    counters = model.counters
    for row in drafts.counts.nonzero()[0].tolist():
        live = model.running.at(int(rows.table_rows[row]))
        num_drafts, num_accepted = int(drafts.counts[row]), max(0, int(kept[row]) - 1)
        live.num_drafted += num_drafts
        live.num_accepted += num_accepted
        counters.num_drafts += 1
        counters.num_draft_tokens += num_drafts
        counters.num_accepted_tokens += num_accepted


def cut(
    table: RunningTable,
    table_rows: TableRows,
    tokens: NDArray[np.int32],
    counts: NDArray[np.int32],
    eos_token_ids: Sequence[int],
) -> Cut:
    """Keep each row's tokens up to its first end token and its limit; none of an aborted row.

    table_rows, counts: int32 [rows]; tokens: int32 [sum(counts)], row after row. An end token is
    kept.
    """
    if (width := _width(table, tokens, counts, eos_token_ids)) is not None:
        left = int((table.max_total[table_rows] - table.num_tokens[table_rows]).min())
        if width <= left and not (table.has_own_stops and table.has_stops[table_rows].any()):
            return Cut(counts, tokens, width=width, has_ends=width == left)
    rows = np.arange(len(counts)).repeat(counts)
    positions = np.arange(len(tokens)) - (counts.cumsum() - counts)[rows]
    limits = table.max_total[table_rows] - table.num_tokens[table_rows]
    is_aborted = table.is_aborted[table_rows]
    if is_aborted.any():
        limits[is_aborted] = 0
    kept = np.minimum(counts, limits)
    is_end = _is_end(table, table_rows, tokens, rows, eos_token_ids)
    is_stopped = None
    if is_end is not None:
        first_end = counts.astype(np.int64)
        np.minimum.at(first_end, rows[is_end], positions[is_end])
        is_stopped = first_end < kept
        kept[is_stopped] = first_end[is_stopped] + 1
    return Cut(kept, tokens[positions < kept[rows]], is_stopped)


def _width(
    table: RunningTable,
    tokens: NDArray[np.int32],
    counts: NDArray[np.int32],
    eos_token_ids: Sequence[int],
) -> int | None:
    """Return the tokens of each row where all have as many and none is cut; None otherwise."""
    # Nearly every decode job is such, and looking costs a third of doing.
    width = len(tokens) // len(counts)
    if table.has_aborted or width == 0 or np.count_nonzero(counts != width):
        return None
    if any(np.count_nonzero(tokens == token) for token in eos_token_ids):
        return None
    return width


def _is_end(
    table: RunningTable,
    table_rows: TableRows,
    tokens: NDArray[np.int32],
    rows: NDArray[np.intp],
    eos_token_ids: Sequence[int],
) -> NDArray[np.bool_] | None:
    """Return which of `tokens` are end tokens; None where none is."""
    is_end = np.zeros(len(tokens), dtype=np.bool_)
    for token in eos_token_ids:
        is_end |= tokens == token
    if eos_token_ids:
        is_end &= ~table.ignores_eos[table_rows][rows]
    for row in table.has_stops[table_rows].nonzero()[0].tolist():
        stops = table.at(int(table_rows[row])).request.sampling.stop_token_ids
        mine = rows == row
        is_end[mine] |= np.isin(tokens[mine], stops)
    return is_end if is_end.any() else None


def ended_already(
    request: Request, max_total: int, eos_token_ids: Sequence[int]
) -> tuple[FinishReason, int | None] | None:
    """Return how a recovered request had ended before its unit was lost; None: it had not."""
    output, sampling = request.output_tokens, request.sampling
    if len(output) == 0:
        return None
    last = int(output[-1])
    eos = tuple(eos_token_ids) if sampling.ends_at_eos else ()
    if last in (*eos, *sampling.stop_token_ids) and len(output) >= sampling.min_tokens:
        return FinishReason.STOP, last
    if len(request.prompt_tokens) + len(output) >= max_total:
        return FinishReason.LENGTH, None
    return None
