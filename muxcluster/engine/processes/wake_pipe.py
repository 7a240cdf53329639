"""Ends a `select` in one thread from another."""

import os


class WakePipe:
    """A pipe to select on; read it when it is ready."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """Descriptor to select on; readable after `wake`."""
        return self._read

    def wake(self) -> None:
        """Make the pipe readable; never blocks; from any thread."""
        try:
            os.write(self._write, b"\0")
        except BlockingIOError:
            return  # full of earlier calls: the select will return

    def drain(self) -> None:
        """Forget the calls so far; call it only when the pipe is ready."""
        os.read(self._read, 4096)

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)
