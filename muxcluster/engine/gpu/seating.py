"""What an owner and the worker that it spawned for a seat tell each other, over one stream.

The owner sends Start (channel's), then Seating; the worker answers Seated or Unseated; the owner
passes it the unit's stream (one byte with a descriptor). The worker may say Lost at its end. EOF
means that the other side is gone.
"""

from typing import cast

import msgspec

from muxcluster.engine.gpu.manifest import Manifest
from muxcluster.engine.seats import Seat


class Seating(msgspec.Struct, frozen=True, tag="seating"):
    """Owner to worker: your seat, and the memory to map."""

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


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(cast(type[SeatMessage], SeatMessage))
