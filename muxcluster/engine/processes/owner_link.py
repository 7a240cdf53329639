"""The unit's end of its memory owner: start the process, ask it for workers, end it."""

import select
import socket
from collections.abc import Mapping, Sequence

from muxcluster.channel.codec import Ready, Start, decode, encode
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.backends import ModelBackend
from muxcluster.core.errors import EngineFailure
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.processes.child_process import STOP_GRACE_S, ChildProcess, check_ready
from muxcluster.engine.processes.liveness import Patience, Pulse

OWNER_MODULE = "muxcluster.engine.workers.owner"

# The owner forks, so no library may start a thread in it; workers raise the count per job. PASSIVE:
# idle threads of one worker must not spin on the cores of another, but for a moment (half a
# millisecond or so): between two products a thread that sleeps wakes up too late (measured: 52 to
# 62 tokens/s at one stream, 525 to 559 at 32). hugetlb: weights in large pages, where the kernel
# grants them on request (measured: a fifth less time a step at one row). CAPACITY: a product of
# another number of rows is a kernel and a description of it, 0.4 MiB, which two caches of 1,024
# entries keep, oneDNN's own and that of torch's binding of it; one smaller alone saves little (a
# worker of a tiny model grew by 266 MiB over 20,000 requests). Fewer entries cost time: jobs of
# four tiny models of all sizes took 1.33 times as long with 64, 1.12 times with 256.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "30000",
    "TOKENIZERS_PARALLELISM": "false",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "LRU_CACHE_CAPACITY": "256",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
}


class ForkStream:
    """Requests to an owner: a child's id with its sockets attached, answered by its process id.

    Both are 4 bytes, little-endian. A request without sockets ends the child. A call raises OSError
    if the owner is dead, and TimeoutError, which is one, if it does not answer.
    """

    def __init__(self, stream: socket.socket, patience: Patience) -> None:
        """stream: owned by this object from now on."""
        self._stream = stream
        self._patience = patience

    def worker(self, worker_id: int) -> tuple[FrameSocket, int]:
        """Request a (new) worker process; return the stream to it and its process id.

        An earlier one of that id is killed first.
        """
        ours, theirs = socket.socketpair()
        # A worker that is stopped in mid-frame must not stop the unit too.
        ours.settimeout(self._patience.silence_s)
        with theirs:
            try:
                return FrameSocket(ours), self.child(worker_id, [theirs])
            except OSError:
                ours.close()
                raise

    def child(self, child_id: int, streams: Sequence[socket.socket]) -> int:
        """Request a process that gets `streams`, not closed here; return its id."""
        return self._ask(child_id, [stream.fileno() for stream in streams])

    def end(self, child_id: int) -> None:
        """Have a child killed, if it lives, and return when it is gone."""
        self._ask(child_id, [])

    def close(self) -> None:
        self._stream.close()

    def _ask(self, child_id: int, descriptors: list[int]) -> int:
        self._stream.settimeout(self._patience.fork_s)
        request = child_id.to_bytes(4, "little")
        if descriptors:
            socket.send_fds(self._stream, [request], descriptors)
        else:
            self._stream.sendall(request)
        answer = self._stream.recv(4, socket.MSG_WAITALL)
        if len(answer) < 4:
            raise ConnectionResetError("the owner died")
        return int.from_bytes(answer, "little")


class OwnerLink(ChildProcess):
    """One owner process; the workers are in its process group.

    control: a stream whose EOF means the other side is gone; it carries Start, then Ready or
    LoadFailed. forks: requests for workers.
    """

    def __init__(
        self,
        patience: Patience,
        *,
        module: str | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        name: str = "the memory owner",
    ) -> None:
        """module: the owner's program, by default the one that forks. arguments: of the program.

        environment: all of it. name: for messages.
        """
        self._patience = patience
        self._name = name
        unit_control, owner_control = socket.socketpair()
        unit_forks, owner_forks = socket.socketpair()
        self.forks = ForkStream(unit_forks, patience)
        super().__init__(
            module or OWNER_MODULE, (owner_control, owner_forks), arguments, environment
        )
        self.control = FrameSocket(unit_control)
        self.load_s = 0.0  # Seconds that the owner took to load, of those that `load` took

    def load(self, spec: UnitSpec) -> tuple[ModelBackend, ...]:
        """Send the owner what to load and block until it has; return how the models run.

        Raises LoadError with the owner's message, EngineFailure if it raised something else, died
        (its standard error is ours, so the reason can be read there) or hung.
        """
        try:
            self.begin_load(spec)
            self._await_answer(spec)
        except OSError:
            raise self._died_loading(spec) from None
        return self.loaded(spec)

    def begin_load(self, spec: UnitSpec) -> None:
        """Send the owner what to load; `loaded` must follow. Raises OSError if it is dead."""
        self.control.send(encode(Start(spec)))

    def loaded(self, spec: UnitSpec) -> tuple[ModelBackend, ...]:
        """Take its answer to `begin_load`, when it has one. Raises as `load`, if it is not hung."""
        try:
            frame = self.control.recv()
        except OSError:
            frame = None
        if frame is None:
            raise self._died_loading(spec)
        message = decode(frame)
        if isinstance(message, Ready):
            self.load_s = message.load_s
        return check_ready(message, spec.unit_id)

    def _died_loading(self, spec: UnitSpec) -> EngineFailure:
        status = self.reap(STOP_GRACE_S)
        return EngineFailure(f"{self._name} of {spec.unit_id} died loading: exit {status}")

    def _await_answer(self, spec: UnitSpec) -> None:
        """Block until the loading owner answers or dies. Raises EngineFailure if it hangs."""
        pulse = Pulse(self.pid)
        while not select.select([self.control], [], [], self._patience.load_beat_s)[0]:
            pulse.beat(is_busy=True)
            if pulse.is_silent:
                self.kill()
                raise EngineFailure(f"the memory owner of {spec.unit_id} hung while loading")

    def fork(self, worker_id: int) -> tuple[FrameSocket, int]:
        """As `ForkStream.worker`."""
        return self.forks.worker(worker_id)

    def stop(self) -> None:
        """Let the owner end its workers and itself; kill the group if that takes long."""
        self.close()
        self.reap(STOP_GRACE_S)

    def close(self) -> None:
        """Let the owner end its workers and itself; `reap` must follow."""
        self.control.close()
        self.forks.close()
