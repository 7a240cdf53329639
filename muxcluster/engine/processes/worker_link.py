"""The unit's end of one worker process: its stream, its job and its pulse."""

from collections import deque
from collections.abc import Sequence

from muxcluster.channel.codec import Done, Failed, Launch, Serving, decode, encode
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.job import Job
from muxcluster.engine.executor import JobDone, JobFailed, Outcome
from muxcluster.engine.processes.job_limits import JobLimits
from muxcluster.engine.processes.liveness import Pulse

# Errors of a stream whose other end is a dead process.
GONE = (BrokenPipeError, ConnectionResetError)


class WorkerLink:
    """A worker from its fork to its replacement; it runs its jobs one after the other.

    Jobs given while it starts (on a GPU that may take minutes) are sent when it says that it takes
    them, and their time limits begin then.

    worker_id: its rung's id, by which the owner knows it; several rungs may belong to one worker.
    """

    def __init__(
        self, worker_id: int, frames: FrameSocket, pid: int, limits: JobLimits, start_by_s: float
    ) -> None:
        """start_by_s: when it must have started."""
        self.worker_id = worker_id
        self.frames = frames
        self.pulse = Pulse(pid)
        self._jobs: deque[Job] = deque()
        self._limits = limits
        self._start_by_s = start_by_s
        self._give_up_s = 0.0
        self._is_serving = False
        self._untaken: int | None = None
        self._is_stuck = False

    @property
    def is_busy(self) -> bool:
        return len(self._jobs) > 0

    @property
    def is_serving(self) -> bool:
        return self._is_serving

    @property
    def is_working(self) -> bool:
        """True if it should use processor time."""
        return self.is_busy and self._is_serving

    @property
    def is_stuck(self) -> bool:
        """True if it took too long to read a job."""
        return self._is_stuck

    @property
    def num_rows(self) -> int:
        """Rows of the job that it runs, 0 if it runs none."""
        return len(self._jobs[0].rows) if self._jobs and self._is_serving else 0

    def launch(self, job: Job, now: float) -> None:
        """Give it `job`; `hear` or `check`, not this, report a dead or hung worker."""
        last = self._jobs[-1] if self._jobs else None
        is_refused = last is not None and last.follows is not None  # or will be, or follows itself
        assert last is None or is_refused or job.follows == last.job_id, (
            f"worker {self.worker_id} already runs a job"
        )
        self._jobs.append(job)
        if not self._is_serving:
            return
        if last is None:
            self._begin(now)
        self._send(job)

    def _send(self, job: Job) -> None:
        try:
            self.frames.send(encode(Launch(job)))
        except TimeoutError:
            self._is_stuck = True
        except GONE:
            self._untaken = job.job_id

    def _begin(self, now: float) -> None:
        if self._jobs:
            self._give_up_s = now + self._limits.limit_s(self._jobs[0])

    def hear(self, now: float) -> Sequence[Outcome] | None:
        """Return the outcome of its first job, or nothing if it says that it takes jobs.

        Returns None if the worker is dead or hangs inside a frame.
        """
        heard = self.receive(now)
        if heard is None:
            return None
        if isinstance(heard, Serving):
            return ()
        job, message = heard
        if isinstance(message, Done):
            return (JobDone(message.result),)
        return (JobFailed(message.job_id, job.worker_id, message.message),)

    def receive(self, now: float) -> tuple[Job, Done | Failed] | Serving | None:
        """Return its first job with the answer to it, or that it takes jobs; None as `hear`."""
        try:
            frame = self.frames.recv()
        except ConnectionResetError:
            # The kernel says so where the worker died with our frame unread: the last one.
            self._untaken = self._jobs[-1].job_id if self._jobs else None
            frame = None
        except TimeoutError:
            frame = None
        if frame is None:
            return None
        self.pulse.heard()
        message = decode(frame)
        if isinstance(message, Serving):
            self._start_serving(now)
            return message
        assert self._jobs, "an idle worker spoke"
        job = self._jobs.popleft()
        if isinstance(message, Done):
            self._limits.measured(job, message.result.seconds)
        self._begin(now)
        assert isinstance(message, Done | Failed), f"a worker sent {type(message).__name__}"
        return job, message

    def _start_serving(self, now: float) -> None:
        assert not self._is_serving, "a worker started twice"
        self._is_serving = True
        self._begin(now)
        for job in self._jobs:
            self._send(job)

    def check(self, now: float) -> str | None:
        """Take its pulse; return why it must be replaced, or None."""
        self.beat()
        if self.pulse.is_silent or self._is_stuck:
            return "its worker process hung" if self.is_working else "it was stopped"
        return self.overdue(now)

    def beat(self) -> None:
        """Take its pulse."""
        self.pulse.beat(is_busy=self.is_working)

    def overdue(self, now: float) -> str | None:
        """Return which of its time limits it has missed, or None."""
        if not self._is_serving and now > self._start_by_s:
            return "its worker process did not start in time"
        if self.is_working and now > self._give_up_s:
            return "its worker process did not come to an end"
        return None

    def await_end(self) -> None:
        """Read its stream to the end: a killed process closes it when its memory is gone."""
        try:
            while self.frames.recv() is not None:
                pass
        except OSError:
            return  # it is gone, or cannot even be killed

    def lose(self, cause: str) -> Sequence[JobFailed]:
        """Return its jobs, if any, as failed: the worker is gone."""
        return tuple(
            JobFailed(
                job.job_id,
                job.worker_id,
                cause,
                has_started=self._is_serving and self._untaken != job.job_id,
            )
            for job in self._jobs
        )
