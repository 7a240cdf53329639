"""Memory owner of a unit: loads weights once, maps the pool, forks the workers.

Run as `python -m muxcluster.engine.workers.owner CONTROL_FD FORK_FD` by the unit. It keeps a single
thread: libgomp deadlocks in a forked child whose parent has run threads (design.md §9).
"""

import gc
import logging
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from muxcluster.channel.frames import FrameSocket
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.engine.workers.child_main import name_process, serve_unit
from muxcluster.engine.workers.worker import Worker

logger = logging.getLogger(__name__)

# A fork request is a little-endian worker id with the worker's socket attached; the answer is the
# worker's process id in as many bytes.
WORKER_ID_BYTES = 4


# Of a worker id, the unit's stream and the pipe that ends with the owner: the worker, in its fork.
MakeWorker = Callable[[int, FrameSocket, int], Worker]


class Owner:
    """Holds the memory, and forks a worker whenever the unit asks for one."""

    def __init__(
        self, unit_id: str, make_worker: MakeWorker, control: FrameSocket, forks: socket.socket
    ) -> None:
        self._unit_id = unit_id
        self._make_worker = make_worker
        self._control = control
        self._forks = forks
        self._alive_read, self._alive_write = os.pipe()
        self._children: dict[int, int] = {}

    def serve(self) -> None:
        """Fork on request until the unit is gone, then end the workers."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._forks, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select()}
                if self._control.fileno() in ready:
                    break
                request, descriptors, _, _ = socket.recv_fds(self._forks, WORKER_ID_BYTES, 1)
                if not request:
                    break
                self._fork(int.from_bytes(request, "little"), descriptors[0])
        for worker_id in list(self._children):
            self._end(worker_id)

    def _fork(self, worker_id: int, descriptor: int) -> None:
        if worker_id in self._children:
            self._end(worker_id)
        _flush()
        pid = os.fork()
        if pid == 0:
            self._become_worker(worker_id, descriptor)
        os.close(descriptor)
        self._children[worker_id] = pid
        self._forks.sendall(pid.to_bytes(WORKER_ID_BYTES, "little"))

    def _become_worker(self, worker_id: int, descriptor: int) -> None:
        """Run the worker; never returns, because the owner's clean-up must not run in the child."""
        status = 1
        try:
            name_process(f"mux-worker-{worker_id}")
            self._control.close()
            self._forks.close()
            os.close(self._alive_write)
            frames = FrameSocket(socket.socket(fileno=descriptor))
            self._make_worker(worker_id, frames, self._alive_read).serve()
            status = 0
        except (BrokenPipeError, ConnectionResetError):
            status = 0  # the unit went first
        except BaseException:
            logger.exception("worker %d of %s died", worker_id, self._unit_id)
        finally:
            _flush()
            os._exit(status)

    def _end(self, worker_id: int) -> None:
        """Kill and reap the worker; it holds nothing that must be released."""
        pid = self._children.pop(worker_id)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _load(spec: UnitSpec) -> UnitRunner:
    torch.set_num_threads(1)
    runner = UnitRunner(spec)
    prepare_to_fork()
    return runner


def prepare_to_fork() -> None:
    """Keep what was loaded from being copied by the garbage collection of workers."""
    _warn_of_threads()
    gc.collect()
    gc.freeze()  # collections in a worker must not touch, and so copy, the owner's pages


def _warn_of_threads() -> None:
    tasks = Path("/proc/self/task")
    if tasks.is_dir() and len(list(tasks.iterdir())) > 1:
        logger.warning("a library started a thread in the memory owner: workers may deadlock")


def main(control_fd: int, fork_fd: int) -> int:
    """Serve one unit to its end; return the exit status."""
    forks = socket.socket(fileno=fork_fd)

    def serve(spec: UnitSpec, runner: UnitRunner, control: FrameSocket) -> None:
        def make(_: int, frames: FrameSocket, owner_alive: int) -> Worker:
            return Worker(runner, frames, owner_alive)

        Owner(spec.unit_id, make, control, forks).serve()

    return serve_unit(
        "mux-owner", control_fd, _load, serve, backends=lambda runner: runner.backends
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
