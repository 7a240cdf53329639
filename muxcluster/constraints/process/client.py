"""The workers' end of the mask process: asks for masks before a step, waits for them after it."""

import contextlib
import socket
import threading
import time
from collections.abc import Sequence

from muxcluster.constraints.process.frames import ReceivedMasks, SentGrammars, receive, send
from muxcluster.constraints.rows import MaskRow, Masks
from muxcluster.core.errors import EngineFailure

# A process that is killed reads the vocabularies anew, seconds for each model; a row with which the
# server hangs ends it three times before it is refused.
PATIENCE_S = 120.0
PAUSE_S = 0.05  # before another try


class PendingMasks:
    """Masks that were asked for."""

    def __init__(self, client: "MaskClient", rows: Sequence[MaskRow]) -> None:
        self.rows = rows
        self._client = client
        self._done = threading.Event()
        self._masks: Masks | None = None

    def wait(self) -> Masks:
        """Return the masks. Raises EngineFailure if the process does not come back."""
        return self._client.wait_for(self)

    def wait_once(self, timeout_s: float) -> Masks | None:
        """Return the masks; None if the connection broke before them. Raises TimeoutError."""
        if not self._done.wait(timeout_s):
            raise TimeoutError
        return self._masks

    def expect(self) -> None:
        """Take note that it is asked for now."""
        self._done.clear()

    def end(self, masks: Masks | None) -> None:
        """Hand over the masks, or None for a connection that broke."""
        self._masks = masks
        self._done.set()


class MaskClient:
    """A connection to the mask process at `address`, for any thread.

    The process may die and start again at any time: then it is asked again, with all tokens.
    """

    def __init__(self, address: str, *, joins: bool = False) -> None:
        """joins: who asks may ask for runs of forced tokens (`MaskRow.joins`)."""
        self.joins = joins
        self._address = address
        self._lock = threading.Lock()
        self._connection: _Connection | None = None

    def begin(self, rows: Sequence[MaskRow]) -> PendingMasks:
        """Ask for the masks of `rows` and return at once."""
        pending = PendingMasks(self, rows)
        self._ask(pending)
        return pending

    def close(self) -> None:
        """End the connection; masks that are waited for are asked for again. Idempotent."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def wait_for(self, pending: PendingMasks) -> Masks:
        """As `PendingMasks.wait`."""
        before_s = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(TimeoutError):
                masks = pending.wait_once(max(0.0, before_s - time.monotonic()))
                if masks is not None:
                    return masks
            if time.monotonic() > before_s:
                raise EngineFailure("the process that computes masks of constraints is gone")
            time.sleep(PAUSE_S)
            self._ask(pending)

    def _ask(self, pending: PendingMasks) -> None:
        pending.expect()
        with self._lock:
            if self._connection is None or self._connection.is_broken:
                try:
                    self._connection = _Connection(self._address)
                except OSError:
                    pending.end(None)
                    return
            connection = self._connection
        connection.ask(pending)


class _Connection:
    """One connection. A thread reads from it, so that neither end ever waits for the other's room
    for bytes."""

    def __init__(self, address: str) -> None:
        """Connect. Raises OSError."""
        self._stream = socket.socket(socket.AF_UNIX)
        try:
            self._stream.connect(address)
        except OSError:
            self._stream.close()
            raise
        self._lock = threading.Lock()
        self._grammars = SentGrammars()
        self._waiting: dict[int, PendingMasks] = {}
        self._num_asked = 0
        self.is_broken = False
        threading.Thread(target=self._read, name="masks", daemon=True).start()

    def ask(self, pending: PendingMasks) -> None:
        """Send the request; a broken connection ends it."""
        with self._lock:
            if self.is_broken:
                pending.end(None)
                return
            self._num_asked += 1
            message, data = self._grammars.request(self._num_asked, pending.rows)
            self._waiting[self._num_asked] = pending
            with contextlib.suppress(OSError):  # the reading thread sees that too
                send(self._stream, message, data)

    def close(self) -> None:
        """End the connection; the thread then ends."""
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        masks = ReceivedMasks()
        with self._stream:
            try:
                while True:
                    message, data = receive(self._stream)
                    with self._lock:
                        pending = self._waiting.pop(message[1])
                    pending.end(masks.masks(message, data))
            except (OSError, EOFError):
                self.close()
        with self._lock:
            self.is_broken = True
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for pending in waiting:
            pending.end(None)
