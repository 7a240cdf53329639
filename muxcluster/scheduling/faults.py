"""Which request makes jobs fail: suspects run apart, so that the guilty one convicts itself.

A failed job (its worker died, hung or raised) does not say which of its rows is to blame, or
whether any is: workers are also killed by hand or for lack of memory. So a failure in company
convicts no request. Every row of the job becomes a suspect, and suspects run apart from all others
until they have got past the point where the job failed, in the phase in which it failed:

- With prompt left to compute, a suspect runs as the only row of its jobs. Those that decode do so
  too where the failed job had at most `MAX_ROWS_ONE_BY_ONE` rows; else they run in jobs of at most
  half as many rows as it had. Each failed job halves that number for its rows.
- An innocent request gets past the point in its first job without the guilty one (or the first
  after a stray kill), is cleared and runs in company again, with nothing held against it.
- The guilty one fails alone in the end. After `MAX_LONE_FAILURES` lone failures without a success
  between it ends with an error, and none but itself was in those jobs. A request that runs alone
  from the start is refused at its second kill; one that starts among at most `MAX_ROWS_ONE_BY_ONE`
  rows at its third; one among n rows after ceil(log2(n / MAX_ROWS_ONE_BY_ONE)) more at most.
- A kill from outside ends no innocent request unless it hits the lone job of the same request twice
  in a row; while many requests run it makes them suspects at most, whatever the number of kills.

A request that is suspected of a decode step recomputes a lost prompt in company: prompts have run
before, and after the loss of all memory hundreds of them would run one by one. A guilty one may
fail there, too, once.

Where the memory's owner is lost, every running job is under suspicion. Until the suspects of such
a loss are cleared the unit runs one job at a time, so that a second loss has one possible cause.

Packings know nothing of this: `RunningTable` and `Waiting` list suspects apart from all others.
"""

import numpy as np

from muxcluster.core.errors import PoisonRequest
from muxcluster.core.events import Event, FinishReason
from muxcluster.core.job import Job, Phase
from muxcluster.scheduling.jobs import without_ended
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.packing.batch import Batch, Draft, Limits, Packing, Turn
from muxcluster.scheduling.packing.priority import decode_batch
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.requests import LiveRequest
from muxcluster.scheduling.state.running import TableRows
from muxcluster.scheduling.state.suspicion import Suspicion, suspicion
from muxcluster.scheduling.steptime.model import StepTimes


def _has_lost_states(model: ModelState, row: int) -> bool:
    """Return whether a failed job may have changed what a row cannot compute again from where the
    job began: its states.

    They could be told from the mark that lies with them, but where columns were restored for the
    job, they are lent again as they were before it: the mark in host memory is older than the
    states in the pool.
    """
    if model.spec.state_columns:
        return True
    return not model.spec.is_positional and bool(model.kv.num_lent[row])


class Failures:
    """Suspects, and later clears or ends, the rows of failed jobs by the rules above."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._of_loss: set[str] = set()

    @property
    def is_exclusive(self) -> bool:
        """True while only one job at a time may run: suspects of an owner's loss are here.

        With two jobs at a time the next loss would again have two possible causes.
        """
        return bool(self._of_loss)

    def fail(
        self, model: ModelState, job: Job, now: float, cause: str, *, has_started: bool
    ) -> list[Event]:
        """Suspect the rows of a job whose worker is gone or raised; return the requests' ends.

        Its rows keep their memory: a job writes only at the positions it computes, and these are
        written again. Rows with states do not, see `_has_lost_states`. `cause` goes into the
        message of a request that ends. A job that never started convicts no request, nor does one
        with rows of requests that had ended.
        """
        events: list[Event] = []
        whole, job = job, without_ended(self._memory, model, job)
        is_certain = has_started and job is whole
        for row, table_row in enumerate(job.rows.table_rows.tolist()):
            end = self._blame(model, job, row, now, cause, is_certain=is_certain)
            if end is not None:
                events.append(end)
            elif has_started and _has_lost_states(model, table_row):
                num_computed = int(model.running.num_computed[table_row])
                model.counters.num_recomputed_tokens += num_computed
                self._memory.requeue(model, table_row, now, is_trusted=False)
        return events

    def lose(
        self, model: ModelState, job: Job, now: float, cause: str, *, was_alone: bool
    ) -> list[Event]:
        """Suspect the rows of a job that ran when the memory's owner was lost; return their ends.

        was_alone: no other job ran.
        """
        events: list[Event] = []
        whole, job = job, without_ended(self._memory, model, job)
        is_certain = was_alone and job is whole
        for row, table_row in enumerate(job.rows.table_rows.tolist()):
            end = self._blame(model, job, row, now, cause, is_certain=is_certain)
            if end is None:
                live = self._memory.requeue(model, table_row, now, is_trusted=False)
                self._of_loss.add(live.request.request_id)
            else:
                events.append(end)
        return events

    def clear(self, model: ModelState, job: Job) -> None:
        """Clear suspects by a job that ran. Call it before its result is applied."""
        table, rows = model.running, job.rows
        if not table.num_suspects:
            return
        for row in table.is_suspect[rows.table_rows].nonzero()[0].tolist():
            table_row = int(rows.table_rows[row])
            live, end = table.at(table_row), int(rows.ends[row])
            assert live.suspicion is not None
            is_decoding = not table.is_prefilling[table_row]
            if live.suspicion.is_refuted(job.phase, end, is_decoding=is_decoding):
                live.suspicion = None
                table.clear(table_row)
                self.forget(live.request.request_id)

    def forget(self, request_id: str) -> None:
        """Forget a request that has ended or is a suspect no longer."""
        self._of_loss.discard(request_id)

    def _blame(
        self,
        model: ModelState,
        job: Job,
        row: int,
        now: float,
        cause: str,
        *,
        is_certain: bool,
    ) -> Event | None:
        """Return the end of the row's request, or None: it is a suspect from now on."""
        table_row = int(job.rows.table_rows[row])
        live = model.running.at(table_row)
        if model.running.is_aborted[table_row]:
            self._memory.release(model, table_row, is_trusted=False)
            return live.finished(FinishReason.ABORT, now)
        live.suspicion = suspicion(
            live.suspicion,
            job.phase,
            int(job.rows.ends[row]),
            len(job.rows),
            is_decoding=not model.running.is_prefilling[table_row],
            is_certain=is_certain,
        )
        if live.suspicion.is_proven:
            self._memory.release(model, table_row, is_trusted=False)
            return live.finished(
                FinishReason.ERROR, now, code=PoisonRequest.code, message=_verdict(live, cause)
            )
        live.account.set_back(now, keeps_memory=True)
        model.running.set_back(table_row)
        return None


def _verdict(live: LiveRequest, cause: str) -> str:
    assert live.suspicion is not None
    return (
        f"poison request: of the jobs it ran in alone, {live.suspicion.num_lone_failures} failed "
        f"in a row ({cause or 'no cause is known'})"
    )


_NOBODY: TableRows = np.empty(0, dtype=np.int32)


class Isolation:
    """A packing around another one: suspects first and apart; the other one packs the rest."""

    def __init__(self, packing: Packing, memory: Memory, limits: Limits, times: StepTimes) -> None:
        self._packing = packing
        self._memory = memory
        self._limits = limits
        self._times = times
        self.is_class_blind, self.by_deadline = packing.is_class_blind, packing.by_deadline
        self.may_lend, self.repeats = packing.may_lend, packing.repeats
        self.predicts = packing.predicts

    def observe(self, job: Job, seconds: float, num_beside: int) -> None:
        self._packing.observe(job, seconds, num_beside)

    def decodes_all(self, model: ModelState) -> bool:
        """As the packing has it; jobs of suspects are not pipelined."""
        return self._packing.decodes_all(model)

    def may_prefill(self, model: ModelState) -> bool:
        """True where a suspect could be in a prefill job, or others could."""
        if not model.has_suspects:
            return self._packing.may_prefill(model)
        if len(model.running.idle_suspects(are_prefilling=True)):
            return True
        head = model.waiting.suspects.head
        if head is None:
            return self._packing.may_prefill(model)
        with self._memory.without_lending(), model.waiting.closed():
            return self._memory.fits(model, head) or self._packing.may_prefill(model)

    def pack(self, model: ModelState, phase: Phase, turn: Turn) -> Batch:
        """Suspects where some can run, else a job without suspects."""
        if not model.has_suspects:
            return self._packing.pack(model, phase, turn)
        batch = self._restored(model, turn, phase)
        with self._memory.without_lending():
            if not len(batch) and phase is not Phase.DECODE:
                batch = self._chunk(model)
            if not len(batch) and phase is not Phase.PREFILL:
                batch = self._decodes(model, turn, phase)
        if len(batch):
            return batch
        if model.waiting.suspects.head is None:
            return self._packing.pack(model, phase, turn)
        with model.waiting.closed():  # or others would keep taking the blocks that it waits for
            return self._packing.pack(model, phase, turn)

    def _decodes(self, model: ModelState, turn: Turn, phase: Phase) -> Batch:
        """The most senior suspect that decodes, and as many others as each of them may run with."""
        # The workers are told all of them whole.
        limits = self._limits
        rows = model.running.idle_suspects(are_prefilling=False)
        rows = self._memory.unblocked(model, rows)
        if len(rows) > 1:
            most = np.array([_suspicion(model, row).most_rows for row in rows.tolist()])
            rows = rows[most >= most[0]][: min(int(most[0]), limits.max_decode_rows)]
            rows = np.sort(model.fitting(rows))
        max_steps = limits.max_steps
        if phase is Phase.MIXED:
            rows, max_steps = rows[: limits.token_budget], 1
        batch = decode_batch(self._memory, model, rows, turn.now, max_steps)
        batch.admitted = batch.rows.tolist()
        return batch

    def _chunk(self, model: ModelState) -> Batch:
        """A chunk of the most senior suspect with prompt left, or of one that is let in."""
        table = model.running
        rows = table.idle_suspects(are_prefilling=True)
        head = model.waiting.suspects.head
        if len(rows := self._memory.unblocked(model, rows)):
            row = int(rows[0])
        elif head is not None and self._memory.admit(model, head):
            assert head.row is not None
            row = head.row
        else:
            return Batch(_NOBODY, _NOBODY)
        return Batch(_one(row), _one(self._chunk_tokens(model, row)), admitted=[row])

    def _restored(self, model: ModelState, turn: Turn, phase: Phase) -> Batch:
        """A suspect that lent blocks, with the copies that restore it."""
        memory, table = self._memory, model.running
        if not (table.num_lent and table.num_suspects):
            return Batch(_NOBODY, _NOBODY)
        draft = Draft(model, self._times.of(model.name, turn.share))
        for row in memory.restorable(model).tolist():
            is_prefilling, is_batch = bool(table.is_prefilling[row]), bool(table.is_batch[row])
            if not table.is_suspect[row] or phase is (
                Phase.DECODE if is_prefilling else Phase.PREFILL
            ):
                continue
            if not is_batch:
                restored = memory.restore_interactive(model, row, turn.job_id)
            elif memory.has_column_for(model, row):
                restored = memory.restore(model, row, turn.job_id)
            else:
                continue
            if restored is None:
                break
            draft.restore(restored)
            if is_prefilling:
                draft.chunk(row, self._chunk_tokens(model, row), is_admitted=True)
            else:
                rows, grown = memory.grow_free(model, _one(row))
                draft.decode(rows, grown, is_batch=is_batch, is_admitted=True)
            draft.save(memory, turn.job_id)
            break
        return draft.batch()

    def _chunk_tokens(self, model: ModelState, row: int) -> int:
        left = int(model.running.num_tokens[row] - model.running.num_computed[row])
        return min(self._limits.token_budget, left)


def _suspicion(model: ModelState, row: int) -> Suspicion:
    suspicion = model.running.at(row).suspicion
    assert suspicion is not None, f"nothing is known against row {row}"
    return suspicion


def _one(number: int) -> TableRows:
    return np.array([number], dtype=np.int32)
