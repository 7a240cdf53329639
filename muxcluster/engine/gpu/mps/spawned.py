"""The owner's end of one worker process: spawn it, wait until it is ready, hand it to the unit."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from muxcluster.channel.frames import FrameSocket
from muxcluster.core.errors import EngineFailure
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.gpu.gpu_id import PERCENTAGE
from muxcluster.engine.gpu.memory.manifest import Manifest
from muxcluster.engine.gpu.mps.messages import (
    Lost,
    StartFailed,
    StartWorker,
    WorkerReady,
    decode,
    written,
)
from muxcluster.engine.gpu.refusals import WORKER_ENDED
from muxcluster.engine.processes.rungs import WorkerRung

WORKER_MODULE = "muxcluster.engine.gpu.mps.worker"


class SpawnedWorker:
    """A worker from its spawning to its end."""

    def __init__(self, spec: UnitSpec, rung: WorkerRung, manifest: Manifest, module: str) -> None:
        """Spawn the worker and return at once; `hear` returns what became of it."""
        self.rung = rung
        self.has_unit = False
        self._stream, theirs = socket.socketpair()
        files = [r.descriptor for r in manifest.regions if r.descriptor is not None]
        start = written(StartWorker(spec, rung, manifest))
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", module, str(theirs.fileno()), str(start)],
                    stdin=subprocess.DEVNULL,
                    env=environment_of(rung, os.environ),
                    pass_fds=(theirs.fileno(), start, *files),
                )
        finally:
            os.close(start)
        self._frames = FrameSocket(self._stream)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """Descriptor, readable when the worker has a message or is gone."""
        return self._stream.fileno()

    def hear(self) -> WorkerReady | StartFailed | Lost | None:
        """Return its message about its start or its end; None if it is gone."""
        try:
            frame = self._frames.recv()
        except ConnectionResetError:
            return None
        if frame is None:
            return None
        said = decode(frame)
        assert not isinstance(said, StartWorker), "a worker was given a rung by another"
        return said

    def last_message(self) -> Lost | None:
        """Return why it ended, if it said so and the message was not read before."""
        while self._stream.fileno() >= 0 and select.select([self._stream], [], [], 0.0)[0]:
            said = self.hear()
            if said is None:
                break
            if isinstance(said, Lost):
                return said
        return None

    def give_unit(self, descriptor: int) -> None:
        """Hand it the unit's stream; it may still be starting."""
        self.has_unit = True
        socket.send_fds(self._stream, [b"u"], [descriptor])

    def end(self) -> int:
        """Kill it if it still lives, and reap it; return its exit status."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        status = self._process.wait()
        self._stream.close()
        return status

    def reap(self, timeout_s: float) -> int:
        """Return the status of a worker that closed its stream; kill it after `timeout_s`."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self.end()

    def ended(self, status: int) -> EngineFailure:
        """Return the error for a worker that ended before it was ready."""
        how = f"exit status {status}" if status >= 0 else signal.Signals(-status).name
        return EngineFailure(
            WORKER_ENDED.format(worker=self.rung.worker_id, share=self.rung.share, status=how)
        )


def environment_of(rung: WorkerRung, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the owner's environment with the rung's share for MPS, in percent."""
    assert rung.share is not None, "a process needs a share of its own"
    return {**inherited, PERCENTAGE: f"{100 * rung.share:g}"}
