"""Process of one rank on a GPU: its part of every model, its own pool, its workers as threads.

Run as `python -m muxcluster.engine.parallel.rank CONTROL_FD RANK MEETING_POINT` by the unit.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import torch

from muxcluster.channel.codec import Launch, decode, encode
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.backends import ModelBackend
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobDone, JobFailed
from muxcluster.engine.gpu.green.parts import ThreadParts, parts_for
from muxcluster.engine.gpu.green.threads import Report, RungThreads
from muxcluster.engine.parallel.answers import answer_of
from muxcluster.engine.parallel.process_group import ProcessGroup, backend_for
from muxcluster.engine.parallel.thread_groups import ThreadGroups
from muxcluster.engine.processes.rungs import RungPlan, rung_per_share
from muxcluster.engine.steps.device.captures import CallAgain
from muxcluster.engine.steps.runner import UnitMemory, UnitRunner
from muxcluster.engine.workers.child_main import serve_unit

logger = logging.getLogger(__name__)


class Workers(Protocol):
    """Runs jobs: see `threads.RungThreads`."""

    def start(self, report: Report) -> None: ...

    def give(self, job: Job) -> None: ...

    def close(self) -> None: ...


class RankServer:
    """Gives the rank's workers their jobs, and the unit their answers.

    A worker has its jobs in the order of arrival, which is the same on all ranks, so every
    collective meets its counterpart.
    """

    def __init__(self, control: FrameSocket, rank: int, num_calls: Callable[[int], int]) -> None:
        """num_calls: of a worker id, how often its ranks have met."""
        self._control = control
        self._rank = rank
        self._num_calls = num_calls
        self._sending = threading.Lock()

    def serve(self, workers: Workers) -> None:
        """Pass jobs on until the unit is gone, or a job has lost this process its device."""
        workers.start(self._report)
        while (frame := self._control.recv()) is not None:
            message = decode(frame)
            assert isinstance(message, Launch), f"a rank was sent {type(message).__name__}"
            workers.give(message.job)

    def _report(self, outcome: JobDone | JobFailed | SystemExit) -> None:
        """Send the unit the answer to a job; called on the thread of its worker."""
        if isinstance(outcome, SystemExit):
            logger.error("rank %d ends: %s", self._rank, outcome)
            self._control.shutdown()
            return
        num_calls = 0
        if isinstance(outcome, JobFailed):
            num_calls = self._num_calls(outcome.worker_id)
        with self._sending, suppress(BrokenPipeError, ConnectionResetError):  # the unit went first
            self._control.send(encode(answer_of(outcome, self._rank, num_calls)))


_Loaded = tuple[RungThreads, ThreadGroups, tuple[ModelBackend, ...]]


def main(control_fd: int, rank: int, meeting_point: Path) -> int:
    """Serve one unit to its end; return the exit status."""

    def load(spec: UnitSpec) -> _Loaded:
        mine = spec.of_rank(rank)
        backend = backend_for(spec.rank_devices or [spec.device])
        joined = ProcessGroup(rank, spec.tp, mine.device, backend)
        plan = RungPlan(rung_per_share(spec.workers))
        # before the weights: it may be refused
        parts = (parts_for(mine) if spec.partition == "green" else ThreadParts()).open(plan.rungs)
        joined.join(meeting_point)
        groups = ThreadGroups(joined, [worker.worker_id for worker in spec.workers])
        is_cpu = torch.device(mine.device).type == "cpu"
        capture = None if is_cpu or joined.is_recordable else CallAgain()

        def make(memory: UnitMemory | None) -> UnitRunner:
            return UnitRunner(mine, memory, capture, groups)

        # Ranks are idle at different times, and recording runs collectives. What they record while
        # they load and within jobs is the same on all.
        threads = RungThreads(mine, plan, entered=groups.entered, records_idle=False)
        return threads, groups, threads.load(parts, make)

    def serve(_: UnitSpec, loaded: _Loaded, control: FrameSocket) -> None:
        threads, groups = loaded[:2]
        server = RankServer(control, rank, lambda worker_id: groups.of(worker_id).num_calls)
        server.serve(threads)
        # Other ranks end, too, so whatever runs may wait for them for ever.
        os._exit(0)

    def explain(said: str) -> str:
        return f"rank {rank}: {said.splitlines()[0]}"  # CUDA's are followed by advice

    try:
        return serve_unit(
            f"mux-rank-{rank}", control_fd, load, serve, explain, lambda loaded: loaded[2]
        )
    except (BrokenPipeError, ConnectionResetError):
        logger.info("rank %d: the unit went first", rank)
        return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
