"""Whole messages over a stream socket: each frame is its length, then its bytes."""

import socket

LENGTH_BYTES = 4  # little-endian, so a frame has less than 4 GiB


class FrameSocket:
    """Frames over a connected, blocking stream socket, which it owns.

    One thread may send while another receives; neither call may run twice at a time.
    """

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def fileno(self) -> int:
        """Descriptor to select on; readable when a frame begins or at EOF."""
        return self._stream.fileno()

    def send(self, frame: bytes) -> None:
        """Blocks until the frame is in the socket. Raises OSError where the peer is gone."""
        self._stream.sendall(len(frame).to_bytes(LENGTH_BYTES, "little") + frame)

    def recv(self) -> bytes | None:
        """The next frame, blocking; None when the peer closed, in mid-frame too.

        Raises OSError where the connection broke.
        """
        header = self._exactly(LENGTH_BYTES)
        return None if header is None else self._exactly(int.from_bytes(header, "little"))

    def close(self) -> None:
        """Close the socket; the peer reads EOF."""
        self._stream.close()

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            chunk = self._stream.recv(count - len(data), socket.MSG_WAITALL)
            if not chunk:
                return None
            data += chunk
        return bytes(data)
