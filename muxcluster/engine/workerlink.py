"""The unit's end of one worker process: its stream, its job and its pulse."""

from collections.abc import Sequence

from muxcluster.channel.codec import Done, Failed, Launch, decode, encode
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.job import Job
from muxcluster.engine.executor import JobDone, JobFailed, Outcome
from muxcluster.engine.joblimits import JobLimits
from muxcluster.engine.liveness import Pulse

GONE = (BrokenPipeError, ConnectionResetError)
"""What a stream raises whose other end is a dead process."""


class WorkerLink:
    """A worker from its fork to its replacement; it runs at most one job at a time.

    worker_id: by which the owner knows it, its seat; several seats may belong to one worker slot.
    """

    def __init__(self, worker_id: int, frames: FrameSocket, pid: int, limits: JobLimits) -> None:
        self.worker_id = worker_id
        self.frames = frames
        self.pulse = Pulse(pid)
        self.job: Job | None = None
        self._limits = limits
        self._give_up_s = 0.0
        self._has_taken = True
        self._is_stuck = False

    @property
    def num_rows(self) -> int:
        """Rows of its job, 0 where it is idle."""
        return 0 if self.job is None else len(self.job.rows)

    def launch(self, job: Job, now: float) -> None:
        """Give it `job`; a dead or hung worker is not reported here but by `hear` or `check`."""
        assert self.job is None, f"worker {self.worker_id} already runs a job"
        self.job = job
        self._give_up_s = now + self._limits.limit_s(job)
        try:
            self.frames.send(encode(Launch(job)))
        except TimeoutError:
            self._is_stuck = True
        except GONE:
            self._has_taken = False

    def hear(self) -> Outcome | None:
        """What became of its job; None: the worker is dead, or stuck in mid-frame."""
        try:
            frame = self.frames.recv()
        except ConnectionResetError:
            # The kernel says so where the worker died with our frame unread.
            self._has_taken = False
            frame = None
        except TimeoutError:
            frame = None
        if frame is None:
            return None
        job, self.job = self.job, None
        assert job is not None, "an idle worker spoke"
        self.pulse.heard()
        message = decode(frame)
        if isinstance(message, Done):
            self._limits.measured(job, message.result.seconds)
            return JobDone(message.result)
        assert isinstance(message, Failed), f"a worker sent {type(message).__name__}"
        return JobFailed(message.job_id, job.worker_id, message.message)

    def check(self, now: float) -> str | None:
        """Take its pulse; why it must be replaced, or None."""
        self.pulse.beat(is_busy=self.job is not None)
        if self.pulse.is_silent or self._is_stuck:
            return "its worker process hung" if self.job else "it was stopped"
        if self.job is not None and now > self._give_up_s:
            return "its worker process did not come to an end"
        return None

    def lose(self, cause: str) -> Sequence[JobFailed]:
        """The worker is gone: its job, where it had one, has failed."""
        if self.job is None:
            return ()
        has_started = self._has_taken
        return (JobFailed(self.job.job_id, self.job.worker_id, cause, has_started=has_started),)
