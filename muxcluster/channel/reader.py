"""Reads a zmq socket on an event loop, all messages that have come at a time."""

import asyncio
from collections.abc import Callable

import zmq

MAX_AT_ONCE = 1000  # messages heard before the loop's other work gets its turn


class SocketReader:
    """Calls `hear` with the last part of each message of `socket`, on the loop that makes this.

    zmq.asyncio takes several futures and a loop turn for each message. Here messages of one turn
    reach their readers together, so that under load these write several tokens at once.
    """

    def __init__(self, socket: zmq.Socket[bytes], hear: Callable[[bytes], None]) -> None:
        self._socket = socket
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.getsockopt(zmq.FD))
        self._is_due = False
        self._is_closed = False
        self._loop.add_reader(self._fd, self._drain)

    def poke(self) -> None:
        """Look for messages. Call it after each use of the socket.

        The socket's descriptor shows changes only, and any use of the socket may consume one.
        """
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._drain)

    def close(self) -> None:
        """Stop reading. Call it before the socket is closed. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._fd)

    def _drain(self) -> None:
        self._is_due = False
        for _ in range(MAX_AT_ONCE):
            if self._is_closed:
                return
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._hear(parts[-1])
        self.poke()
