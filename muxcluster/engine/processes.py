"""The executor whose workers are child processes of a memory owner (DESIGN.md §4)."""

import logging
import os
import selectors
from collections.abc import Sequence

from muxcluster.channel.codec import Done, Failed, Launch, decode, encode
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.admissions import AdmissionLedger
from muxcluster.engine.executor import JobDone, JobFailed, Outcome, OwnerLost
from muxcluster.engine.ownerlink import OwnerLink

logger = logging.getLogger(__name__)

MAX_LOSSES = 5
"""Idle worker deaths or owner restarts, without a finished job between, before we give up."""

STOP_GRACE_S = 5.0

_GONE = (BrokenPipeError, ConnectionResetError)
"""What a stream raises whose other end is a dead process."""


class _Worker:
    """Unit side of one worker slot: its stream and the job it runs."""

    def __init__(self, worker_id: int, frames: FrameSocket) -> None:
        self.worker_id = worker_id
        self.frames = frames
        self.job_id: int | None = None


class ProcessExecutor:
    """One owner, one worker per WorkerSlot; a dead worker is replaced, a dead owner reported."""

    def __init__(self, spec: UnitSpec) -> None:
        self._spec = spec
        self._owner: OwnerLink | None = None
        self._workers: dict[int, _Worker] = {}
        self._ledger = AdmissionLedger.of(spec)
        self._num_losses = 0
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._is_closed = False

    @property
    def owner_pid(self) -> int:
        """Process id of the memory owner; its children are the workers."""
        assert self._owner is not None, "not started"
        return self._owner.pid

    def start(self) -> None:
        self._owner = OwnerLink()
        self._owner.load(self._spec)
        self._ledger = AdmissionLedger.of(self._spec)
        self._selector.register(self._owner.control, selectors.EVENT_READ, self._owner)
        try:
            for slot in self._spec.workers:
                self._fork(slot.worker_id)
        except _GONE as error:
            message = f"the memory owner of {self._spec.unit_id} died before it made a worker"
            raise EngineFailure(message) from error

    def launch(self, job: Job) -> None:
        worker = self._workers[job.worker_id]
        assert worker.job_id is None, f"worker {job.worker_id} already runs job {worker.job_id}"
        worker.job_id = job.job_id
        try:
            worker.frames.send(encode(Launch(self._ledger.complete(job))))
        except _GONE:
            logger.warning("worker %d died before job %d", job.worker_id, job.job_id)
            # `wait` reads EOF from the same stream and reports the job as failed

    def wait(self, timeout_s: float | None) -> Sequence[Outcome]:
        ready = [key for key, _ in self._selector.select(timeout_s)]
        if any(isinstance(key.data, OwnerLink) for key in ready):
            return [self._lose_owner()]
        outcomes: list[Outcome] = []
        try:
            for key in ready:
                if isinstance(key.data, _Worker):
                    outcomes.extend(self._hear(key.data))
                else:
                    os.read(self._wake_read, 4096)
        except _GONE:  # no new worker for a dead one: the owner is dead too
            return [self._lose_owner()]
        return outcomes

    def restart(self) -> None:
        self._count_loss("the memory owner")
        self.start()

    def wake(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            return  # the pipe is full of earlier calls: the wait will return

    def kill(self) -> None:
        owner = self._owner
        if owner is not None:
            owner.kill()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._drop_processes()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _fork(self, worker_id: int) -> None:
        assert self._owner is not None, "a worker without an owner"
        worker = _Worker(worker_id, self._owner.fork(worker_id))
        self._ledger.forget_worker(worker_id)
        self._workers[worker_id] = worker
        self._selector.register(worker.frames, selectors.EVENT_READ, worker)

    def _hear(self, worker: _Worker) -> Sequence[Outcome]:
        try:
            frame = worker.frames.recv()
        except ConnectionResetError:
            frame = None
        if frame is None:
            return self._replace(worker)
        worker.job_id = None
        message = decode(frame)
        if isinstance(message, Done):
            self._num_losses = 0
            return [JobDone(message.result)]
        assert isinstance(message, Failed), f"a worker sent {type(message).__name__}"
        return [JobFailed(message.job_id, worker.worker_id, message.message)]

    def _replace(self, worker: _Worker) -> Sequence[Outcome]:
        """A new worker in the dead one's place; its job, if it ran one, has failed."""
        logger.warning("worker %d of %s died", worker.worker_id, self._spec.unit_id)
        self._drop(worker)
        if worker.job_id is None:
            self._count_loss(f"worker {worker.worker_id}")
        self._fork(worker.worker_id)
        if worker.job_id is None:
            return []
        return [JobFailed(worker.job_id, worker.worker_id, "its worker process died")]

    def _lose_owner(self) -> OwnerLost:
        message = f"the memory owner of {self._spec.unit_id} died"
        logger.error(message)
        self.kill()  # a worker deep in a job would notice late
        self._drop_processes()
        return OwnerLost(message)

    def _drop_processes(self) -> None:
        """Close every stream (workers and owner see EOF), then reap the owner."""
        for worker in list(self._workers.values()):
            self._drop(worker)
        if self._owner is not None:
            if self._owner.control in self._selector.get_map():
                self._selector.unregister(self._owner.control)
            self._owner.stop(STOP_GRACE_S)
            self._owner = None

    def _drop(self, worker: _Worker) -> None:
        del self._workers[worker.worker_id]
        self._selector.unregister(worker.frames)
        worker.frames.close()

    def _count_loss(self, what: str) -> None:
        self._num_losses += 1
        if self._num_losses > MAX_LOSSES:
            raise EngineFailure(f"{what} of {self._spec.unit_id} keeps dying")
