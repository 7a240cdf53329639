"""Main program of a child process that loads a unit's models and then serves the unit."""

import faulthandler
import logging
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from muxcluster.channel.codec import LoadFailed, Ready, Start, decode, encode
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.backends import ModelBackend
from muxcluster.core.errors import EngineFailure, LoadError
from muxcluster.core.inputs.log_lines import log_formatter
from muxcluster.core.unitspec import UnitSpec

logger = logging.getLogger(__name__)

T = TypeVar("T")


def set_up_child() -> None:
    """Set up a child process: show where it crashes, log, and ignore Ctrl-C."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the unit decides when we end
    handler = logging.StreamHandler()
    handler.setFormatter(log_formatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show (15 characters); on Linux only."""
    comm = Path("/proc/self/comm")
    if comm.exists():
        comm.write_text(name)


def serve_unit(
    name: str,
    control_fd: int,
    load: Callable[[UnitSpec], T],
    serve: Callable[[UnitSpec, T, FrameSocket], None],
    explain: Callable[[str], str] = str,
    backends: Callable[[T], tuple[ModelBackend, ...]] | None = None,
) -> int:
    """Serve one unit to its end; return the exit status.

    name: of the process. load: what to do between Start and Ready; the unit gets what it raises, an
    unforeseen error as explained by `explain`. serve: the rest, with what was loaded. backends: how
    its models run; None: all of them paged.
    """
    name_process(f"{name}-idle")
    set_up_child()
    control = FrameSocket(socket.socket(fileno=control_fd))
    frame = control.recv()
    if frame is None:
        return 0
    message = decode(frame)
    assert isinstance(message, Start), f"{name} was sent {type(message).__name__}"
    name_process(name)
    started_s = time.monotonic()
    loaded = attempted(f"{name} of {message.spec.unit_id}", lambda: load(message.spec), explain)
    if isinstance(loaded, LoadFailed):
        control.send(encode(loaded))
        return 1
    paged = tuple(ModelBackend(model.name) for model in message.spec.models)
    found = paged if backends is None else backends(loaded)
    control.send(encode(Ready(found, time.monotonic() - started_s)))
    serve(message.spec, loaded, control)
    return 0


def attempted(
    who: str, load: Callable[[], T], explain: Callable[[str], str] = str
) -> T | LoadFailed:
    """Return what `load` returns, or what the unit is told of an error that it raises.

    who: this process, for the log. explain: of an unforeseen error.
    """
    try:
        return load()
    except LoadError as error:
        return LoadFailed(str(error.path), error.reason)
    except EngineFailure as error:
        return LoadFailed("", str(error))
    except Exception as error:
        logger.exception("%s cannot start", who)
        return LoadFailed("", explain(f"{type(error).__name__}: {error}"))
