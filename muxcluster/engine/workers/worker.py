"""A worker process: takes jobs from its socket, runs them in order, answers."""

import selectors
import time
from collections.abc import Callable

from muxcluster.channel.codec import Done, Failed, Launch, Serving, decode, encode
from muxcluster.channel.frames import FrameSocket
from muxcluster.engine.executor import JobDone, JobFailed
from muxcluster.engine.workers.pipeline import IDLE_S, JobRunner, Pipeline

# pause between two polls of device and socket while the device works and no job follows yet
_NAP_S = 5e-5


def answer_of(outcome: JobDone | JobFailed) -> Done | Failed:
    """Return what a worker tells the unit of a job."""
    if isinstance(outcome, JobDone):
        return Done(outcome.result)
    return Failed(outcome.job_id, outcome.message)


class Worker:
    """Runs in a child of the memory owner, which shares weights, pool and tables with it.

    frames: the stream to the unit. owner_alive: read end of a pipe whose only write end the owner
    holds, so EOF means that the owner died. answer: makes the answer to a job that ended.
    """

    def __init__(
        self,
        runner: JobRunner,
        frames: FrameSocket,
        owner_alive: int,
        answer: Callable[[JobDone | JobFailed], Done | Failed] = answer_of,
    ) -> None:
        self._pipeline = Pipeline(runner)
        self._frames = frames
        self._owner_alive = owner_alive
        self._answer_of = answer
        self._may_record = False

    def serve(self) -> None:
        """Report that jobs are taken, and run them until the unit or the owner is gone."""
        self._frames.send(encode(Serving()))
        with selectors.DefaultSelector() as selector:
            selector.register(self._frames, selectors.EVENT_READ)
            selector.register(self._owner_alive, selectors.EVENT_READ)
            while True:
                if self._pipeline.must_end:
                    self._answer()
                    continue
                ready = {key.fd for key, _ in selector.select(self._wait_s())}
                if self._owner_alive in ready:
                    return
                if not ready:
                    self._nap()
                    continue
                frame = self._frames.recv()
                if frame is None:
                    return
                message = decode(frame)
                assert isinstance(message, Launch), f"a worker was sent {type(message).__name__}"
                self._pipeline.begin(message.job)
                self._may_record = True

    def _wait_s(self) -> float | None:
        """Return how long to wait for the socket: not at all while the device works."""
        if len(self._pipeline):
            return 0.0
        return IDLE_S if self._may_record else None

    def _nap(self) -> None:
        """Use a moment without messages: sleep while the device works, else record a step."""
        if len(self._pipeline):
            time.sleep(_NAP_S)
        else:
            self._may_record = self._pipeline.record_next()

    def _answer(self) -> None:
        self._frames.send(encode(self._answer_of(self._pipeline.end())))
