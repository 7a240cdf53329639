"""What an owner and the worker that it spawned for a seat tell each other.

The worker inherits a file with Seating in it, and a stream to the owner. It answers Seated or
Unseated; the owner passes it the unit's stream (one byte with a descriptor). The worker may say
Lost at its end. EOF means that the other side is gone.

Seating is no message on the stream, because it may be larger than a socket's buffer (a manifest of
four models takes 141 KB) and a worker reads only after its imports: the owner would wait for one
worker after the other.
"""

import os
from typing import cast

import msgspec

from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.gpu.memory.manifest import Manifest
from muxcluster.engine.processes.rungs import Seat


class Seating(msgspec.Struct, frozen=True, tag="seating"):
    """Owner to worker: the unit, your seat, and the memory to map."""

    spec: UnitSpec
    seat: Seat
    manifest: Manifest


class Seated(msgspec.Struct, frozen=True, tag="seated"):
    """Worker to owner: everything is mapped; multiprocessors that my work runs on."""

    sm_ids: tuple[int, ...]


class Unseated(msgspec.Struct, frozen=True, tag="unseated"):
    """Worker to owner: I cannot work, and why."""

    message: str


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """Worker to owner, its last word: my context is lost, and others may be too."""

    reason: str


SeatMessage = Seating | Seated | Unseated | Lost


def encode(message: SeatMessage) -> bytes:
    """The message as bytes."""
    return _encoder.encode(message)


def decode(data: bytes) -> SeatMessage:
    """The message in `data`. Raises msgspec.MsgspecError where it is none."""
    return _decoder.decode(data)


def written(seating: Seating) -> int:
    """Descriptor of a new file in memory that holds `seating`; whoever calls closes it."""
    descriptor = os.memfd_create("muxcluster-seating")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(encode(seating))
    return descriptor


def read(descriptor: int) -> Seating:
    """What `written` wrote; closes the file."""
    with open(descriptor, "rb") as file:
        file.seek(0)
        seating = decode(file.read())
    assert isinstance(seating, Seating), f"a worker was given {type(seating).__name__}"
    return seating


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(cast(type[SeatMessage], SeatMessage))
