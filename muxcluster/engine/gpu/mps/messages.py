"""What a GPU unit's owner and a worker that it spawned for a rung send each other.

The worker inherits a file with a `StartWorker` message and a stream to the owner. It answers
`WorkerReady` or `StartFailed`; then the owner passes it the unit's stream (one byte with a
descriptor). The worker may send `Lost` before it ends. EOF means that the other side has ended.
"""

# StartWorker is a file and not a message on the stream because it may be larger than a socket's
# buffer (a manifest of four models takes 141 KB) and a worker reads only after its imports: the
# owner would wait for one worker after the other.

import os
from typing import cast

import msgspec

from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.gpu.memory.manifest import Manifest
from muxcluster.engine.processes.rungs import WorkerRung


class StartWorker(msgspec.Struct, frozen=True, tag="start_worker"):
    """Owner to worker: the unit, the worker's rung, and the memory to map."""

    spec: UnitSpec
    rung: WorkerRung
    manifest: Manifest


class WorkerReady(msgspec.Struct, frozen=True, tag="worker_ready"):
    """Worker to owner: all memory is mapped; its work runs on the multiprocessors `sm_ids`."""

    sm_ids: tuple[int, ...]


class StartFailed(msgspec.Struct, frozen=True, tag="start_failed"):
    """Worker to owner: it cannot work, and why."""

    message: str


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """Worker to owner, its last message: its context is lost, and others may be too."""

    reason: str


StartMessage = StartWorker | WorkerReady | StartFailed | Lost


def encode(message: StartMessage) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes) -> StartMessage:
    """Return the message in `data`. Raises msgspec.MsgspecError if it is none."""
    return _decoder.decode(data)


def written(start: StartWorker) -> int:
    """Return the descriptor of a new memory file that holds `start`; the caller closes it."""
    descriptor = os.memfd_create("muxcluster-start")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(encode(start))
    return descriptor


def read(descriptor: int) -> StartWorker:
    """Return the message that `written` wrote, and close the file."""
    with open(descriptor, "rb") as file:
        file.seek(0)
        start = decode(file.read())
    assert isinstance(start, StartWorker), f"a worker was given {type(start).__name__}"
    return start


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(cast(type[StartMessage], StartMessage))
