"""A worker process: takes one job at a time from its socket, runs it, answers."""

import logging
import selectors
from typing import Protocol

from muxcluster.channel.codec import Done, Failed, Launch, decode, encode
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.job import Job, JobResult

logger = logging.getLogger(__name__)


class JobRunner(Protocol):
    """What a worker runs jobs with: see `runner.UnitRunner`."""

    def execute(self, job: Job) -> JobResult:
        """Run the job."""
        ...


class Worker:
    """Runs in a child of the memory owner, which shares weights, pool and tables with it.

    frames: the stream to the unit. owner_alive: read end of a pipe whose only write end the owner
    holds, so EOF means that the owner died.
    """

    def __init__(self, runner: JobRunner, frames: FrameSocket, owner_alive: int) -> None:
        self._runner = runner
        self._frames = frames
        self._owner_alive = owner_alive

    def serve(self) -> None:
        """Run jobs until the unit or the owner is gone."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._frames, selectors.EVENT_READ)
            selector.register(self._owner_alive, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select()}
                if self._owner_alive in ready:
                    return
                frame = self._frames.recv()
                if frame is None:
                    return
                self._answer(frame)

    def _answer(self, frame: bytes) -> None:
        message = decode(frame)
        assert isinstance(message, Launch), f"a worker was sent {type(message).__name__}"
        self._frames.send(encode(self._run(message.job)))

    def _run(self, job: Job) -> Done | Failed:
        try:
            return Done(self._runner.execute(job))
        except Exception as error:
            logger.exception("job %d of %s failed", job.job_id, job.model)
            return Failed(job.job_id, f"{type(error).__name__}: {error}")
