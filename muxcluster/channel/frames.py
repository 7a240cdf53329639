"""Messages over a stream socket: each frame is its length, then its bytes."""

import socket

LENGTH_BYTES = 4  # little-endian, so a frame has less than 4 GiB


class FrameSocket:
    """Frames over a connected, blocking stream socket, which it owns.

    One thread may send while another receives; two may not send, nor receive, at once.
    """

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def fileno(self) -> int:
        """Return the descriptor to select on; it is readable when a frame begins and at EOF."""
        return self._stream.fileno()

    def send(self, frame: bytes) -> None:
        """Send a frame, blocking. Raises OSError if the peer is gone."""
        self._stream.sendall(len(frame).to_bytes(LENGTH_BYTES, "little") + frame)

    def recv(self) -> bytes | None:
        """Return the next frame, blocking; None if the peer closed, even within a frame.

        Raises OSError if the connection broke.
        """
        header = self._exactly(LENGTH_BYTES)
        return None if header is None else self._exactly(int.from_bytes(header, "little"))

    def shutdown(self) -> None:
        """End the stream both ways: the peer reads EOF, and so does a `recv` in another thread."""
        self._stream.shutdown(socket.SHUT_RDWR)

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
