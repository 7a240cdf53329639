"""Frames over a socket pair: whole, in order, and an end that is seen."""

import socket
import threading
from collections.abc import Iterator

import pytest

from muxcluster.channel.frames import FrameSocket


@pytest.fixture
def pair() -> Iterator[tuple[FrameSocket, FrameSocket]]:
    left, right = map(FrameSocket, socket.socketpair())
    yield left, right
    left.close()
    right.close()


def test_frames_arrive_whole_and_in_order(pair: tuple[FrameSocket, FrameSocket]) -> None:
    left, right = pair
    # Far beyond the socket's buffer: sender and receiver must both go on in pieces.
    frames = [b"", b"x", bytes(range(256)) * 20_000, b"last"]
    sender = threading.Thread(target=lambda: [left.send(frame) for frame in frames])
    sender.start()
    assert [right.recv() for _ in frames] == frames
    sender.join()


def test_both_ends_send_and_end(pair: tuple[FrameSocket, FrameSocket]) -> None:
    left, right = pair
    right.send(b"hello")
    right.close()
    assert left.recv() == b"hello"
    assert left.recv() is None
    with pytest.raises(OSError):
        left.send(b"nobody reads this")


@pytest.mark.parametrize("sent", [b"\x05\x00", b"\x05\x00\x00\x00ab"])
def test_an_end_in_mid_frame_is_an_end(sent: bytes) -> None:
    raw, other = socket.socketpair()
    frames = FrameSocket(other)
    raw.sendall(sent)
    raw.close()
    assert frames.recv() is None
    frames.close()


def test_fileno_is_the_sockets() -> None:
    left, right = socket.socketpair()
    assert FrameSocket(left).fileno() == left.fileno()
    left.close()
    right.close()
