"""The messages of the channel as bytes: msgpack with arrays as (dtype, shape, bytes)."""

import math
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from muxcluster.core.backends import ModelBackend
from muxcluster.core.batch_part import BatchPart, LineOver, PartOver
from muxcluster.core.events import TokenDelta
from muxcluster.core.job import Job, JobResult
from muxcluster.core.request import Request
from muxcluster.core.residency import WeightOrder
from muxcluster.core.served import UnitStats
from muxcluster.core.unitspec import UnitSpec


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Unit to memory owner: load this."""

    spec: UnitSpec


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Memory owner to unit: everything is loaded. backends: of the models, in order. load_s:
    seconds from Start to here."""

    backends: tuple[ModelBackend, ...] = ()
    load_s: float = 0.0


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    """Memory owner to unit: loading failed; `path` names the file at fault, or is empty."""

    path: str
    message: str


class Serving(msgspec.Struct, frozen=True, tag="serving"):
    """Worker to unit, first message: the worker has started and takes jobs."""


class Launch(msgspec.Struct, frozen=True, tag="launch"):
    """Unit to worker: run this job."""

    job: Job


class Done(msgspec.Struct, frozen=True, tag="done"):
    """Worker to unit: a job's result."""

    result: JobResult


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Worker to unit: a job raised; the worker goes on.

    num_collectives: of a rank, how often it has met the others so far: those that differ are out of
    step for good.
    """

    job_id: int
    message: str
    num_collectives: int = 0


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Client to unit: a new request."""

    request: Request


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Client to unit: end this request."""

    request_id: str


class FeedPart(msgspec.Struct, frozen=True, tag="feed_part"):
    """Client to unit: feed this part of a batch; its lines come as requests."""

    part: BatchPart


class EndLine(msgspec.Struct, frozen=True, tag="end_line"):
    """Client to unit: no further request comes for a line of a part."""

    over: LineOver


class EndPart(msgspec.Struct, frozen=True, tag="end_part"):
    """Client to unit: forget a part."""

    over: PartOver


class MoveWeights(msgspec.Struct, frozen=True, tag="move_weights"):
    """Client to unit: an operator's order for a model's weights."""

    call_id: str
    model: str
    order: WeightOrder


class MoveAnswer(msgspec.Struct, frozen=True, tag="move_answer"):
    """Unit to client: an order is being followed, or why not (the fields of core's errors)."""

    call_id: str
    code: str = ""  # empty: it is followed
    message: str = ""


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Client to unit: sign of life."""


class Deltas(msgspec.Struct, frozen=True, tag="deltas"):
    """Unit to client: new output by request id."""

    deltas: Mapping[str, TokenDelta]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Unit to client: the unit cannot take a request now (the fields of core's Unavailable)."""

    request_id: str
    code: str
    message: str
    retry_after_s: int


class Stats(msgspec.Struct, frozen=True, tag="stats"):
    """Unit to client: its state and sign of life."""

    stats: UnitStats


Message = (
    Start
    | Ready
    | LoadFailed
    | Serving
    | Launch
    | Done
    | Failed
    | Submit
    | Abort
    | FeedPart
    | EndLine
    | EndPart
    | MoveWeights
    | MoveAnswer
    | Ping
    | Deltas
    | Refused
    | Stats
)

_ARRAY_KINDS = "biuf"  # booleans, integers and floats: the dtypes that are plain bytes


def encode(message: Message) -> bytes:
    """Return the message as bytes. Raises TypeError for a field that no message may hold."""
    return _encoder.encode(message)


def decode(data: bytes | memoryview) -> Message:
    """Return the message in `data`; arrays are writable copies, sequences have their field's type.

    Raises ValueError if `data` is not one whole message.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"not a message of the channel: {error}") from error


def _to_plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in _ARRAY_KINDS:
            raise TypeError(f"an array of {value.dtype} cannot travel")
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot travel")


def _from_plain(kind: object, value: object) -> object:
    """Return the array that `_to_plain` encoded; msgspec turns a ValueError into its own."""
    dtype_name, shape, data = msgspec.convert(value, tuple[str, tuple[int, ...], bytes])
    try:
        dtype = np.dtype(dtype_name)
    except (TypeError, SyntaxError) as error:  # numpy parses some names as Python
        raise ValueError(f"no array dtype {dtype_name!r}") from error
    if dtype.kind not in _ARRAY_KINDS or min(shape, default=0) < 0:
        raise ValueError(f"no array of {dtype_name!r} and shape {shape}")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"{len(data)} bytes for an array of {dtype_name} and shape {shape}")
    array: NDArray[Any] = np.frombuffer(data, dtype=dtype).reshape(shape)
    # torch warns about read-only arrays, and a view would keep the whole message alive.
    return array.copy()


_encoder = msgspec.msgpack.Encoder(enc_hook=_to_plain)
_decoder = msgspec.msgpack.Decoder(cast(type[Message], Message), dec_hook=_from_plain)
