"""SIGINT and SIGTERM as one exception in the main thread, so that `finally` cleans up."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """A signal to end this process; `signum` says which."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """130 for an interrupt at the keyboard; 0 for SIGTERM, the ordinary way to stop."""
        return 130 if self.signum == signal.SIGINT else 0


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise `Stopped` at the first signal within the block, and ignore further ones.

    An impatient second signal would interrupt the clean-up and leave processes behind.
    """

    def stop(signum: int, frame: FrameType | None) -> None:
        for number in watched:
            signal.signal(number, signal.SIG_IGN)
        raise Stopped(signum)

    watched = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, stop) for number in watched}
    try:
        yield
    except SystemError as error:
        # Python code that C code called was interrupted, and the C code did not notice
        cause: BaseException | None = error
        while isinstance(cause, SystemError):
            cause = cause.__cause__
        if isinstance(cause, Stopped):
            raise cause from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_forever() -> None:
    """Block until a signal raises."""
    threading.Event().wait()
