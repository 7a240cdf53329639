"""Answers requests for masks: what the mask process does once the vocabularies are read."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from muxcluster.constraints.matching import BadGrammar, Matching, TokenMasks
from muxcluster.constraints.process.blame import Blame
from muxcluster.constraints.process.frames import ReceivedGrammars, SentMasks, receive, send
from muxcluster.constraints.process.priority import Starved, lower, run_quietly
from muxcluster.constraints.rows import MaskRow

# Of processor time, for the mask of one row. A check allows half of that to compile, and 100,000
# tokens are consumed in about one second. Then the process ends, and `Blame` knows with which row.
MOST_ROW_CPU_S = 4.0
WATCH_S = 1.0  # how often it is looked at
# On the clock, for a thread inside the engine that keeps Python's lock, so that nobody can look.
STALLED_S = 60


def serve(
    listener: socket.socket, parent: socket.socket, masks: Mapping[str, TokenMasks], blame: Blame
) -> None:
    """Serve connections, a thread each, until `parent` ends; does not return."""
    matching = Matching(masks)
    watch = _Watch(blame)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for target, arguments in ((_end_with, (parent,)), (watch.run, ())):
        threading.Thread(target=target, args=arguments, daemon=True).start()
    while True:
        stream, _ = listener.accept()
        threading.Thread(
            target=_Connection(stream, matching, watch).run, name="masks", daemon=True
        ).start()


def _end_with(parent: socket.socket) -> None:
    with contextlib.suppress(OSError):
        parent.recv(1)
    os._exit(0)


class _Watch:
    """Hears of every row, for `Blame`, and ends the process when one takes too long."""

    def __init__(self, blame: Blame) -> None:
        self._blame = blame
        self._begun: dict[int, tuple[int, float]] = {}  # by thread: its processor clock, seconds

    def begin(self, row: MaskRow) -> bool:
        """This thread begins with the row; return False if it must not."""
        if not self._blame.begin(row):
            return False
        clock = time.pthread_getcpuclockid(threading.get_ident())
        self._begun[threading.get_ident()] = clock, time.clock_gettime(clock)
        return True

    def end(self, row: MaskRow) -> None:
        """This thread has the row's mask."""
        self._begun.pop(threading.get_ident(), None)
        self._blame.end(row)

    def leave(self) -> None:
        """This thread ends."""
        self._begun.pop(threading.get_ident(), None)
        self._blame.leave()

    def run(self) -> None:
        """Look from time to time."""
        while True:
            signal.alarm(STALLED_S)
            for clock, begun_s in list(self._begun.values()):
                # A thread that has ended since has no clock.
                with contextlib.suppress(OSError):
                    if time.clock_gettime(clock) - begun_s > MOST_ROW_CPU_S:
                        os._exit(1)
            time.sleep(WATCH_S)


class _Connection:
    """A worker's or the unit's connection."""

    def __init__(self, stream: socket.socket, matching: Matching, watch: _Watch) -> None:
        self._stream = stream
        self._matching = matching
        self._watch = watch
        self._grammars = ReceivedGrammars()
        self._sent = SentMasks()
        self._starved: threading.Event | None = None  # set when that compilation has ended

    def run(self) -> None:
        """Answer until the other end closes."""
        with self._stream, contextlib.suppress(OSError, EOFError):
            while True:
                message, data = receive(self._stream)
                if message[0] == "masks":
                    self._answer(message, data)
                else:
                    self._prepare(*message[1:])
        self._watch.leave()

    def _answer(self, message: tuple[Any, ...], data: bytearray) -> None:
        masks = self._matching.masks(self._grammars.rows(message, data), self._watch)
        send(self._stream, *self._sent.answer(message[1], masks))

    def _prepare(self, model: str, grammar: str) -> None:
        """Compile a grammar, for which the unit has a connection of its own."""
        error = None
        work = partial(self._matching.prepare, model, grammar)
        try:
            if self._starved is None or self._starved.is_set():
                try:
                    run_quietly(work)
                except Starved as starved:
                    # that thread cannot be ended: until it has, there is no second one like it
                    self._starved = starved.is_over
                    lower()
                    work()
            else:
                lower()
                work()
        except BadGrammar as bad:
            error = f"{bad}"
        except (MemoryError, RuntimeError) as failure:  # no memory for a thread
            error = f"it cannot be compiled now: {failure}"
        send(self._stream, ("prepared", error))
