"""What a failed job changes: its rows become suspects and run again, or end where convicted."""

from muxcluster.core.errors import PoisonRequest
from muxcluster.core.events import Event, FinishReason
from muxcluster.core.job import Job
from muxcluster.scheduling.lookahead.pipelining import without_ended
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.state.live import LiveRequest
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.suspicion import suspicion


class Failures:
    """Suspects, and later clears or ends, the rows of failed jobs by the rules of isolation.py."""

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
        written again. `cause` goes into the message of a request that ends. A job that never
        started convicts no request, nor does one with rows of requests that had ended.
        """
        events: list[Event] = []
        whole, job = job, without_ended(self._memory, model, job)
        is_certain = has_started and job is whole
        for row in range(len(job.rows)):
            end = self._blame(model, job, row, now, cause, is_certain=is_certain)
            if end is not None:
                events.append(end)
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
            live, end = table.at(table_row), int(rows.starts[row] + rows.counts[row])
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
            int(job.rows.starts[row] + job.rows.counts[row]),
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
