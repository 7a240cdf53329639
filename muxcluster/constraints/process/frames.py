"""Messages between a unit, its workers and its mask process.

A frame is a marshalled tuple and a run of bytes (arrays). All ends run the same code of ours in the
same interpreter; what a client sent is in there only as text and numbers.
"""

import marshal
import socket
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxcluster.constraints.rows import MaskRow, Masks
from muxcluster.core.sampling import Constraint

_HEAD = struct.Struct(">IQ")  # bytes of the tuple, bytes of the arrays
MOST_GRAMMARS = 256  # that one connection knows by number, so that their text travels once
MOST_MASKS = 256  # the same of masks, of 16 KB each for 128,000 tokens


def send(stream: socket.socket, message: tuple[Any, ...], data: bytes = b"") -> None:
    """Send a frame. Raises OSError."""
    head = marshal.dumps(message)
    stream.sendall(b"".join((_HEAD.pack(len(head), len(data)), head, data)))


def receive(stream: socket.socket) -> tuple[tuple[Any, ...], bytearray]:
    """Return the next frame. Raises EOFError at the stream's end, OSError."""
    num_head, num_data = _HEAD.unpack(_received(stream, _HEAD.size))
    message = marshal.loads(_received(stream, num_head))
    return message, _received(stream, num_data)


def _received(stream: socket.socket, num_bytes: int) -> bytearray:
    data = bytearray(num_bytes)
    view, num_received = memoryview(data), 0
    while num_received < num_bytes:
        count = stream.recv_into(view[num_received:])
        if count == 0:
            raise EOFError
        num_received += count
    return data


class SentGrammars:
    """Numbers of the grammars that a connection's other end knows."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def request(self, number: int, rows: Sequence[MaskRow]) -> tuple[tuple[Any, ...], bytes]:
        """Return the frame that asks for the masks of `rows`. number: of this request."""
        forgets = len(self._numbers) > MOST_GRAMMARS
        if forgets:
            self._numbers.clear()
        new: list[tuple[int, str]] = []
        heads = []
        for row in rows:
            grammar = row.constraint.grammar
            known = self._numbers.get(grammar)
            if known is None:
                known = self._numbers[grammar] = len(self._numbers)
                new.append((known, grammar))
            begins_after, num_tokens = row.constraint.begins_after, len(row.tokens)
            heads.append((row.model, row.request_id, known, begins_after, num_tokens, row.joins))
        tokens = b"".join(np.ascontiguousarray(row.tokens, np.int32).tobytes() for row in rows)
        return ("masks", number, forgets, new, heads), tokens


class ReceivedGrammars:
    """The other end of `SentGrammars`."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    def rows(self, message: tuple[Any, ...], data: bytearray) -> list[MaskRow]:
        """Return the rows of a request."""
        _, _, forgets, new, heads = message
        if forgets:
            self._texts.clear()
        self._texts.update(new)
        tokens = np.frombuffer(data, np.int32)
        rows, at = [], 0
        for model, request_id, known, begins_after, num_tokens, joins in heads:
            constraint = Constraint(self._texts[known], begins_after)
            mine = tokens[at : at + num_tokens]
            rows.append(MaskRow(model, request_id, constraint, mine, joins))
            at += num_tokens
        return rows


class SentMasks:
    """Numbers of the masks that a connection's other end has.

    A mask that comes again, as that inside a text does at every step and in many rows, travels
    once.
    """

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def answer(self, number: int, masks: Masks) -> tuple[tuple[Any, ...], bytes]:
        """Return the frame with the masks of request `number`."""
        forgets = len(self._numbers) > MOST_MASKS
        if forgets:
            self._numbers.clear()
        known: list[int] = []
        new: list[bytes] = []
        sizes: list[int] = []
        for bits in masks.bits:
            mask = bits.tobytes()
            at = self._numbers.get(mask)
            if at is None:
                at = self._numbers[mask] = len(self._numbers)
                new.append(mask)
                sizes.append(len(bits))
            known.append(at)
        rest = masks.must_end.tolist(), dict(masks.errors), dict(masks.runs)
        return ("masks", number, forgets, known, sizes, *rest), b"".join(new)


class ReceivedMasks:
    """The other end of `SentMasks`."""

    def __init__(self) -> None:
        self._masks: list[NDArray[np.uint32]] = []

    def masks(self, message: tuple[Any, ...], data: bytearray) -> Masks:
        """Return the masks of an answer; a mask that came before is the same array again."""
        _, _, forgets, known, sizes, ends, errors, runs = message
        if forgets:
            self._masks.clear()
        words: NDArray[np.uint32] = np.frombuffer(data, np.uint32)
        at = 0
        for size in sizes:
            self._masks.append(words[at : at + size])
            at += size
        bits = [self._masks[each] for each in known]
        return Masks(bits, np.array(ends, np.bool_), errors, runs)
