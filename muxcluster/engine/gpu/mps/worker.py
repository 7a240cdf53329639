"""GPU worker process: maps the owner's memory, reports its multiprocessors, runs jobs.

Run as `python -m muxcluster.engine.gpu.mps.worker OWNER_FD START_FD` by the owner, which has set
the SM share in its environment: the driver reads it when the context is made.
"""

import logging
import os
import socket
import sys

import torch

from muxcluster.channel.frames import FrameSocket
from muxcluster.engine.gpu.context import ContextLost, SettledRunner, open_context
from muxcluster.engine.gpu.memory.shared import mapped_memory
from muxcluster.engine.gpu.mps.messages import (
    Lost,
    StartFailed,
    StartWorker,
    WorkerReady,
    encode,
    read,
)
from muxcluster.engine.gpu.sm_probe import SmProbe
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.engine.workers.child_main import name_process, set_up_child
from muxcluster.engine.workers.worker import Worker

logger = logging.getLogger(__name__)


def make_runner(start: StartWorker) -> tuple[SettledRunner, frozenset[int]]:
    """Return a runner over the owner's memory, and the multiprocessors that its work runs on.

    Raises EngineFailure if the memory cannot be mapped, RuntimeError with CUDA's message.
    """
    spec = start.spec
    device = torch.device(spec.device)
    open_context(device, spec, os.environ)
    sm_ids = SmProbe(device).run()
    runner = UnitRunner(spec, mapped_memory(spec, start.manifest))
    if device.type == "cuda":
        runner.warm_up(start.rung.worker_id)
        runner.record(start.rung.worker_id, start.rung.share or 1.0)
    return SettledRunner(runner, device), sm_ids


def serve(stream: socket.socket, start: StartWorker) -> int:
    """Start, report to the owner, and run jobs to the end; return the exit status."""
    owner = FrameSocket(stream)
    name_process(f"mux-worker-{start.rung.rung_id}")
    try:
        runner, sm_ids = make_runner(start)
    except Exception as error:
        logger.exception("worker %d cannot start", start.rung.rung_id)
        owner.send(encode(StartFailed(f"{type(error).__name__}: {error}")))
        return 1
    owner.send(encode(WorkerReady(tuple(sorted(sm_ids)))))
    request, descriptors, _, _ = socket.recv_fds(stream, 1, 1)
    if not request:
        return 0
    unit = FrameSocket(socket.socket(fileno=descriptors[0]))
    try:
        Worker(runner, unit, owner.fileno()).serve()
    except ContextLost as lost:
        owner.send(encode(Lost(lost.reason)))  # before the unit sees that we are gone
        raise
    return 0


def main(owner_fd: int, start_fd: int) -> int:
    """Serve until the unit or the owner is gone; return the exit status."""
    set_up_child()
    try:
        return serve(socket.socket(fileno=owner_fd), read(start_fd))
    except (BrokenPipeError, ConnectionResetError):
        return 0  # the others went first


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
