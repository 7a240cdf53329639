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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch

from muxcluster.channel.frames import FrameSocket
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.engine.workers.child_main import name_process, serve_unit
from muxcluster.engine.workers.worker import Worker

logger = logging.getLogger(__name__)

# A fork request is a little-endian id with the child's sockets attached; the answer is the child's
# process id in as many bytes. A request without sockets ends the child of that id.
WORKER_ID_BYTES = 4
MOST_STREAMS = 2  # sockets of a child


class Servant(Protocol):
    """What a forked child does."""

    def serve(self) -> None:
        """Return when the child may end."""
        ...


# Of a worker id, the unit's stream and the pipe that ends with the owner: the worker, in its fork.
MakeWorker = Callable[[int, FrameSocket, int], Servant]


class Owner:
    """Holds the memory, and forks a worker whenever the unit asks for one."""

    _KIND = "worker"  # of its children, for their names

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
                ready = self._ready(selector)
                if self._control.fileno() in ready:
                    break
                request, descriptors, _, _ = socket.recv_fds(
                    self._forks, WORKER_ID_BYTES, MOST_STREAMS
                )
                if not request:
                    break
                child_id = int.from_bytes(request, "little")
                self._end(child_id)
                pid = self._fork(child_id, descriptors) if descriptors else 0
                self._forks.sendall(pid.to_bytes(WORKER_ID_BYTES, "little"))
        for child_id in list(self._children):
            self._end(child_id)

    def _ready(self, selector: selectors.BaseSelector) -> set[int]:
        """Block until there is a request, or the unit is gone; return which streams are ready."""
        return {key.fd for key, _ in selector.select()}

    def _fork(self, child_id: int, descriptors: Sequence[int]) -> int:
        """Fork the child and return its process id. descriptors: of its sockets, closed here."""
        _flush()
        pid = os.fork()
        if pid == 0:
            self._become_child(child_id, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self._children[child_id] = pid
        return pid

    def _become_child(self, child_id: int, descriptors: Sequence[int]) -> None:
        """Run the child; never returns, because the owner's clean-up must not run in it."""
        status = 1
        try:
            name_process(f"mux-{self._KIND}-{child_id}")
            self._control.close()
            self._forks.close()
            os.close(self._alive_write)
            streams = [socket.socket(fileno=descriptor) for descriptor in descriptors]
            self._servant(child_id, streams, self._alive_read).serve()
            status = 0
        except (BrokenPipeError, ConnectionResetError):
            status = 0  # the unit went first
        except BaseException:
            logger.exception("%s %d of %s died", self._KIND, child_id, self._unit_id)
        finally:
            _flush()
            os._exit(status)

    def _servant(
        self, child_id: int, streams: Sequence[socket.socket], owner_alive: int
    ) -> Servant:
        """Return, in the child, what it does. owner_alive: a pipe that ends with this process."""
        return self._make_worker(child_id, FrameSocket(streams[0]), owner_alive)

    def _end(self, child_id: int) -> None:
        """Kill and reap the child, if there is one; it holds nothing that must be released."""
        pid = self._children.pop(child_id, None)
        if pid is not None:
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
