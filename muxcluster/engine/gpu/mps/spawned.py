"""The owner's end of one worker process: spawn it, hear that it is ready, hand it to the unit."""

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
from muxcluster.engine.gpu.card import PERCENTAGE
from muxcluster.engine.gpu.memory.manifest import Manifest
from muxcluster.engine.gpu.mps.messages import Lost, Seated, Seating, Unseated, decode, written
from muxcluster.engine.gpu.refusals import WORKER_ENDED
from muxcluster.engine.processes.rungs import Seat

WORKER_MODULE = "muxcluster.engine.gpu.mps.worker"


class SpawnedWorker:
    """A worker from its spawning to its end."""

    def __init__(self, spec: UnitSpec, seat: Seat, manifest: Manifest, module: str) -> None:
        """Returns at once, however late the worker reads; `hear` tells what became of it."""
        self.seat = seat
        self.has_unit = False
        self._stream, theirs = socket.socketpair()
        files = [r.descriptor for r in manifest.regions if r.descriptor is not None]
        seating = written(Seating(spec, seat, manifest))
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", module, str(theirs.fileno()), str(seating)],
                    stdin=subprocess.DEVNULL,
                    env=environment_of(seat, os.environ),
                    pass_fds=(theirs.fileno(), seating, *files),
                )
        finally:
            os.close(seating)
        self._frames = FrameSocket(self._stream)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def fileno(self) -> int:
        """Readable when it has something to say or is gone."""
        return self._stream.fileno()

    def hear(self) -> Seated | Unseated | Lost | None:
        """What it says about its start or its end; None: it is gone."""
        try:
            frame = self._frames.recv()
        except ConnectionResetError:
            return None
        if frame is None:
            return None
        said = decode(frame)
        assert not isinstance(said, Seating), "a worker was given a seat by another"
        return said

    def last_words(self) -> Lost | None:
        """Why it ended, where it had the time to say so and nobody has heard it yet."""
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
        """Kill where it still lives, and reap; its exit status."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        status = self._process.wait()
        self._stream.close()
        return status

    def reap(self, timeout_s: float) -> int:
        """Wait for one that closed its stream; killed where it does not end. Its exit status."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self.end()

    def ended(self, status: int) -> EngineFailure:
        """It ended before it was ready."""
        how = f"exit status {status}" if status >= 0 else signal.Signals(-status).name
        return EngineFailure(
            WORKER_ENDED.format(worker=self.seat.worker_id, share=self.seat.share, status=how)
        )


def environment_of(seat: Seat, inherited: Mapping[str, str]) -> dict[str, str]:
    """The owner's, with the seat's share as MPS takes it: percent of the multiprocessors."""
    assert seat.share is not None, "a process needs a share of its own"
    return {**inherited, PERCENTAGE: f"{100 * seat.share:g}"}
