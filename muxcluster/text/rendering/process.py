"""The server's end of one render process."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass

from muxcluster.text.rendering.frames import HEAD, Job, Outcome, Reply

WORKER = "muxcluster.text.rendering.worker"
# of our environment: a template that broke out of its sandbox finds no secrets there
KEPT_VARIABLES = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "TZ")
RECEIVE_BYTES = 2**18
END_S = 1.0  # how long a process may take to end once it has closed its socket


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """Limits of one rendering.

    cpu_s: processor time, which a busy machine does not change. wall_s: on the clock, for a stopped
    process. memory_bytes: of the process's address space.
    """

    cpu_s: float = 2.0
    wall_s: float = 60.0
    memory_bytes: int = 512 * 2**20


class Died(Exception):
    """The process ended in the middle of a job. is_late: because of its time limits."""

    def __init__(self, *, is_late: bool, status: int) -> None:
        super().__init__(f"it ended with status {status}")
        self.is_late = is_late
        self.status = status


class RenderProcess:
    """One process, which takes one job at a time.

    It must not be used after an error of `ask` or `ask_async`.
    """

    def __init__(self, limits: RenderLimits) -> None:
        self._limits = limits
        self._known: set[str] = set()
        ours, theirs = socket.socketpair()
        self._stream = ours
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", WORKER, f"{limits.cpu_s}", f"{limits.memory_bytes}"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={**kept, "PYTHONPATH": paths},
                # Ctrl-C in a terminal is for the server, which then ends its processes
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def knows(self, key: str) -> bool:
        """True if it has compiled this template."""
        return key in self._known

    def ask(self, job: Job) -> Reply:
        """Return the reply to `job`; waits on this thread. Raises Died, ValueError."""
        frame = self._frame(job)
        self._stream.settimeout(self._limits.wall_s)
        try:
            self._stream.sendall(frame)
            outcome, num_bytes = self._head(self._received(HEAD.size))
            return self._reply(job, outcome, self._received(num_bytes))
        except TimeoutError:
            raise self._end(is_late=True) from None
        except (OSError, EOFError, ValueError):
            raise self._end() from None

    def _received(self, num_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < num_bytes:
            part = self._stream.recv(min(RECEIVE_BYTES, num_bytes - len(data)))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    async def ask_async(self, job: Job) -> Reply:
        """As `ask`, on the running event loop."""
        frame = self._frame(job)
        self._stream.setblocking(False)
        try:
            async with asyncio.timeout(self._limits.wall_s):
                await asyncio.get_running_loop().sock_sendall(self._stream, frame)
                data = await self._received_async(bytearray(), HEAD.size)
                outcome, num_bytes = self._head(data)
                await self._received_async(data, HEAD.size + num_bytes)
                return self._reply(job, outcome, bytes(data[HEAD.size :]))
        except TimeoutError:
            raise self._end(is_late=True) from None
        except (OSError, EOFError, ValueError):
            raise self._end() from None
        except asyncio.CancelledError:
            self._end(is_late=True)
            raise

    async def _received_async(self, data: bytearray, num_bytes: int) -> bytearray:
        """Return `data` with at least `num_bytes`; a small reply comes with its head."""
        loop = asyncio.get_running_loop()
        while len(data) < num_bytes:
            part = await loop.sock_recv(self._stream, RECEIVE_BYTES)
            if not part:
                raise EOFError
            data += part
        return data

    def _frame(self, job: Job) -> bytes:
        return job.frame(with_source=job.key not in self._known)

    def _head(self, data: bytes | bytearray) -> tuple[Outcome, int]:
        outcome, num_bytes = HEAD.unpack_from(data)
        if num_bytes > self._limits.memory_bytes:
            raise ValueError("no render process has so much text")
        return Outcome(outcome), num_bytes

    def _reply(self, job: Job, outcome: Outcome, data: bytes) -> Reply:
        is_compiled = job.variables is not None or outcome is Outcome.RENDERED
        if is_compiled:
            self._known.add(job.key)
        return Reply(outcome, data.decode())

    def _end(self, *, is_late: bool = False) -> Died:
        """End the process and return why it died."""
        self._stream.close()
        if is_late:
            self._process.kill()
        try:
            status = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        return Died(is_late=is_late or status == -signal.SIGPROF, status=status)

    def kill(self) -> None:
        """End the process without waiting for its end; subprocess reaps it later."""
        self._stream.close()
        self._process.kill()

    def close(self) -> None:
        """End the process. Idempotent."""
        self.kill()
        self._process.wait()
