"""The child of a `SideProcess`: runs the functions it gets until its parent is gone."""

import os
import pickle
from multiprocessing.connection import Connection

_NICE = 5  # an engine on the same processors goes first


def main() -> None:
    """Serve the connection on file descriptor 0."""
    os.nice(_NICE)
    line = Connection(os.dup(0))
    while True:
        try:
            work, args, kwargs = line.recv()
        except (EOFError, OSError):
            return
        try:
            reply = (False, work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the parent raises it
            reply = (True, _sendable(error))
        try:
            line.send(reply)
        except OSError:
            return


def _sendable(error: Exception) -> Exception:
    """Return the error, or one with its text if it cannot be sent and made again."""
    try:
        pickle.loads(pickle.dumps(error))
    except (pickle.PicklingError, TypeError, AttributeError, ValueError):
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


if __name__ == "__main__":
    main()
