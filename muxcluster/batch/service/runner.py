"""Runs batches from their first line to their last, several at a time."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from muxcluster.batch.service.answers import Answerer
from muxcluster.batch.service.line_limit import LineLimit
from muxcluster.batch.service.planning import LivePlan, Planner, Read
from muxcluster.batch.service.progress import Progress
from muxcluster.batch.service.recorder import Recorder
from muxcluster.batch.service.storage import StorageWaits
from muxcluster.batch.store.entry import custom_id_of, output_guess, parse_entry
from muxcluster.batch.store.intake import Intake, Limits
from muxcluster.batch.store.job import OPEN, Batch, Status
from muxcluster.batch.store.pending import Pending, PendingLines
from muxcluster.batch.store.results import refused
from muxcluster.batch.store.store import BatchStore

_CLOSING_LINES = 1000  # lines that did not run, recorded at a time
# Lines that are read at a time: those that were read go on in one turn of the event loop, which
# thousands of them would hold up for a second (bench/batch.py, claim event_loop_blocked_s).
_MOST_READS = 8
# a plan is asked again after so long: other requests take and free memory too
_ASK_AGAIN_S = 0.5
_NO_DEADLINE_S, _LEAST_LEFT_S = 86_400.0, 3600.0


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """Limits of a runner."""

    window: int = 64  # lines of a model that run at a time
    limits: Limits = field(default_factory=Limits)  # of input files
    # until a write that the disk refused is tried again; None: the run ends with StorageFailed
    retry_s: float | None = None


@dataclass(slots=True, eq=False)
class _Run:
    """A batch whose lines run."""

    batch: Batch
    read: Read
    recorder: Recorder
    progress: Progress
    is_cancelled: asyncio.Event
    weights_left: Counter[str]  # of the lines that have not ended, by model

    def latest_start(self) -> float:
        """Return the latest start of the rest that meets the deadline, Unix seconds."""
        deadline_s = self.batch.order.deadline_s
        if deadline_s is None:
            return float("inf")
        return deadline_s - (self.progress.left_s() or 0.0)

    def left_s(self) -> float:
        """Return the seconds until its deadline, a day if it has none; at least an hour, so that a
        late batch does not count as all work there is."""
        deadline_s = self.batch.order.deadline_s
        left_s = _NO_DEADLINE_S if deadline_s is None else deadline_s - time.time()
        return max(_LEAST_LEFT_S, left_s)


@dataclass(frozen=True, slots=True)
class Ended:
    """A batch at its end. progress: of this run; None if no line was left to run."""

    batch: Batch
    progress: Progress | None


class BatchRunner:
    """Runs batches of `store` through `answerer` on one event loop."""

    def __init__(
        self,
        store: BatchStore,
        answerer: Answerer,
        planner: Planner,
        models: Callable[[], Collection[str]],
        settings: RunnerSettings,
    ) -> None:
        """models: returns the names that are served now."""
        self.waits = StorageWaits()  # batches that wait for the disk
        self._store = store
        self._answerer = answerer
        self._planner = planner
        self._models = models
        self._settings = settings
        self._limits: dict[str, LineLimit] = defaultdict(lambda: LineLimit(settings.window))
        self._reads = asyncio.Semaphore(_MOST_READS)
        self._runs: dict[str, _Run] = {}
        self._cancelled: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def progress(self, batch_id: str) -> Progress | None:
        """Return the progress of a batch whose lines run now, else None."""
        run = self._runs.get(batch_id)
        return None if run is None else run.progress

    def owner(self, batch_id: str) -> str | None:
        """Return the owner of a batch whose lines run now, else None."""
        run = self._runs.get(batch_id)
        return None if run is None else run.batch.order.owner

    def backlogs(self) -> dict[str, float]:
        """Return the prompt and output tokens/s, by model, that end all running batches at their
        deadlines; outputs as estimated."""
        tokens_per_s = dict.fromkeys(
            (model for run in self._runs.values() for model in run.weights_left), 0.0
        )
        for run in self._runs.values():
            for model, weight in run.weights_left.items():
                tokens_per_s[model] += weight / run.left_s()
        return tokens_per_s

    def cancel(self, batch_id: str) -> None:
        """End the run of this batch soon, with all that its lines hold in the engine."""
        self._cancelled[batch_id].set()

    async def run(self, batch_id: str) -> Ended:
        """Run an open batch to its end, from where it stood.

        A cancelled run leaves it open, to be run again, and so do errors. Raises StorageFailed, and
        OSError if the input file is gone.
        """
        batch = await asyncio.to_thread(self._store.get, batch_id)
        if batch.status is Status.VALIDATING:
            intake = Intake(self._store, batch, self._models(), self._settings.limits)
            batch = await asyncio.to_thread(intake.run, _now())
            self.waits.end(batch_id)
        if batch.status not in OPEN:
            return Ended(batch, None)
        progress = None
        try:
            if batch.status is Status.IN_PROGRESS:
                ending, progress = await self._lines(batch)
            elif batch.status is Status.CANCELLING:
                ending = Status.CANCELLED
            else:
                ending = Status.COMPLETED
            return Ended(await asyncio.to_thread(self._end, batch_id, ending), progress)
        finally:
            self._cancelled.pop(batch_id, None)

    async def _lines(self, batch: Batch) -> tuple[Status, Progress]:
        """Run the pending lines to their end, deadline or cancellation; return which it was."""
        batch_id = batch.batch_id
        pending = await asyncio.to_thread(self._store.pending_lines, batch_id)
        read = self._store.reader(batch_id)
        run = _Run(
            batch,
            read,
            Recorder(self._store, batch_id, self._settings.retry_s, self.waits),
            Progress(batch.num_total, batch.num_ended, pending.weight),
            self._cancelled[batch_id],
            Counter(pending.weights),
        )
        self._runs[batch_id] = run
        work = asyncio.create_task(self._work(run, pending))
        cancelled = asyncio.create_task(run.is_cancelled.wait())
        try:
            deadline_s = batch.order.deadline_s
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.time())
            await asyncio.wait((work, cancelled), timeout=left_s, return_when="FIRST_COMPLETED")
            if work.done():
                work.result()
                return Status.COMPLETED, run.progress
            return Status.CANCELLED if cancelled.done() else Status.EXPIRED, run.progress
        finally:
            await _ended(work)
            await _ended(cancelled)
            del self._runs[batch_id]

    async def _work(self, run: _Run, pending: PendingLines) -> None:
        file = self._store.path_of(run.batch.order.input_file_id)
        plans = await self._planner.plan(run.batch, pending, file)
        run.progress.started_s = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for plan in plans:
                    group.create_task(self._feed(run, plan, group))
        except ExceptionGroup as failures:
            # the others were cancelled because of the first
            raise failures.exceptions[0] from None
        finally:
            for plan in plans:
                plan.close()

    async def _feed(self, run: _Run, plan: LivePlan, group: asyncio.TaskGroup) -> None:
        """Start the plan's lines; ask it again whenever a line starts or ends."""
        news = asyncio.Event()
        while True:
            while taken := plan.take():
                for line in taken:
                    await self._start(run, plan, line, news, group)
                await asyncio.sleep(0)
            if not len(plan):
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), _ASK_AGAIN_S)
            news.clear()

    async def _start(
        self,
        run: _Run,
        plan: LivePlan,
        line: Pending,
        news: asyncio.Event,
        group: asyncio.TaskGroup,
    ) -> None:
        """Start one line; a line that no unit feeds waits for its turn among those of all batches.

        Returns when it has begun.
        """
        limit = self._limits[line.model] if plan.place(line.line) is None else None
        if limit is not None:
            await limit.take(run.latest_start)
        task = group.create_task(self._line(run, plan, line, news))
        if limit is not None:
            # also where the task is cancelled before its first step
            task.add_done_callback(partial(_give, limit))

    async def _line(self, run: _Run, plan: LivePlan, line: Pending, news: asyncio.Event) -> None:
        """Run one line, from the file to its result on the disk."""
        async with self._reads:
            data = await asyncio.to_thread(run.read, line)
        entry = parse_entry(data)

        before = line.weight - output_guess(entry)

        def on_tokens(num_tokens: int, *, is_first: bool) -> None:
            if is_first:
                plan.started(line.line)
                news.set()
            run.progress.advance(line.line, min(line.weight, before + num_tokens))

        answer = await self._answerer.answer(
            line.line, entry, run.batch.batch_id, on_tokens, plan.place(line.line)
        )
        plan.ended(line.line, answer.output_tokens)
        news.set()
        await run.recorder.keep(answer.result)
        run.progress.end(line.line, line.weight, answer.result.use)
        run.weights_left[line.model] -= line.weight

    def _end(self, batch_id: str, ending: Status) -> Batch:
        """Record why the lines that are left did not run, then end the batch."""
        reasons = {
            Status.EXPIRED: ("batch_expired", "the batch's completion window ended first"),
            Status.CANCELLED: ("batch_cancelled", "the batch was cancelled first"),
        }
        if ending in reasons:
            code, message = reasons[ending]
            read = self._store.reader(batch_id)
            left = iter(self._store.pending(batch_id))
            while chunk := list(islice(left, _CLOSING_LINES)):
                results = [
                    refused(each.line, custom_id_of(read(each)), code, message) for each in chunk
                ]
                self._store.record(batch_id, results)
        else:
            self._store.enter(batch_id, Status.FINALIZING, _now())
        return self._store.enter(batch_id, ending, _now())


async def _ended(task: "asyncio.Task[None] | asyncio.Task[bool]") -> None:
    """Cancel the task and wait for its end; its result was read before."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _give(limit: LineLimit, _: "asyncio.Task[None]") -> None:
    limit.give()


def _now() -> int:
    return int(time.time())
