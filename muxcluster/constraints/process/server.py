"""Answers requests for masks: what the mask process does once the vocabularies are read."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from muxcluster.constraints.matching import BadGrammar, Matching, TokenMasks
from muxcluster.constraints.process.blame import Blame
from muxcluster.constraints.process.frames import ReceivedGrammars, answer, receive, send

COMPILE_NICE = 10  # of a thread that compiles ahead of need
# A request for masks that takes longer hangs, and the process ends (`Blame` knows with which row).
HANG_S = 10
WATCH_S = 1.0


def serve(
    listener: socket.socket, parent: socket.socket, masks: Mapping[str, TokenMasks], blame: Blame
) -> None:
    """Serve connections, a thread each, until `parent` ends; does not return."""
    matching = Matching(masks)
    watch = _Watch()
    # Ends the process where no thread of Python's can, as one inside the engine keeps the lock.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for target, arguments in ((_end_with, (parent,)), (watch.run, ())):
        threading.Thread(target=target, args=arguments, daemon=True).start()
    while True:
        stream, _ = listener.accept()
        threading.Thread(
            target=_Connection(stream, matching, watch, blame).run, name="masks", daemon=True
        ).start()


def _end_with(parent: socket.socket) -> None:
    with contextlib.suppress(OSError):
        parent.recv(1)
    os._exit(0)


class _Watch:
    """Ends the process when a request takes too long."""

    def __init__(self) -> None:
        self._since_s: dict[int, float] = {}

    def begin(self) -> None:
        """A request begins on this thread."""
        self._since_s[threading.get_ident()] = time.monotonic()

    def end(self) -> None:
        """It has ended."""
        self._since_s.pop(threading.get_ident(), None)

    def run(self) -> None:
        """Look from time to time."""
        while True:
            signal.alarm(HANG_S)
            now_s = time.monotonic()
            if any(now_s - since_s > HANG_S for since_s in list(self._since_s.values())):
                os._exit(1)
            time.sleep(WATCH_S)


class _Connection:
    """A worker's or the unit's connection."""

    def __init__(
        self, stream: socket.socket, matching: Matching, watch: _Watch, blame: Blame
    ) -> None:
        self._stream = stream
        self._matching = matching
        self._watch = watch
        self._blame = blame
        self._grammars = ReceivedGrammars()

    def run(self) -> None:
        """Answer until the other end closes."""
        with self._stream, contextlib.suppress(OSError, EOFError):
            while True:
                message, data = receive(self._stream)
                if message[0] == "masks":
                    self._answer(message, data)
                else:
                    self._prepare(*message[1:])
        self._blame.leave()

    def _answer(self, message: tuple[Any, ...], data: bytearray) -> None:
        self._watch.begin()
        try:
            masks = self._matching.masks(self._grammars.rows(message, data), self._blame)
        finally:
            self._watch.end()
        send(self._stream, *answer(message[1], masks))

    def _prepare(self, model: str, grammar: str) -> None:
        """Compile a grammar on this thread, for which the unit has a connection of its own."""
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), COMPILE_NICE)
        error = None
        try:
            self._matching.prepare(model, grammar)
        except BadGrammar as bad:
            error = f"{bad}"
        send(self._stream, ("prepared", error))
