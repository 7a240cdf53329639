"""`muxcluster top`: what a running server does, each second."""

import json
import os
import sys
import threading
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from muxcluster.cli.batch.options import LOCAL, Key, Url
from muxcluster.cli.watching.browser import Browser
from muxcluster.cli.watching.keyboard import keyboard
from muxcluster.cli.watching.rows import sorted_models
from muxcluster.cli.watching.screen import Frame, whole
from muxcluster.cli.watching.server import LiveServer
from muxcluster.cli.weights.server import AdminKey
from muxcluster.core.errors import MuxClusterError, Unavailable

PERIOD_S = 1.0
_PIPED_COLUMNS = 240
_KEY_S = 0.2  # how long a key is waited for before the screen is drawn again


def top(
    url: Url = LOCAL,
    api_key: Key = None,
    admin_key: AdminKey = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print one screen and exit, as where it is piped.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one snapshot as JSON.")] = False,
) -> None:
    """Show units, models, queues, latencies and batch jobs of a running server each second.

    Keys: q quits, s sorts by the next column, arrows and enter or its number open a model. A server
    with an admin key wants that one. A server that goes away is waited for.

    Examples: muxcluster top
              muxcluster top --once --url http://127.0.0.1:8000
    """
    server = LiveServer.at(url, api_key, admin_key)
    if as_json:
        typer.echo(json.dumps(server.live(), indent=2))
    elif once or not sys.stdout.isatty():
        console = _piped()
        console.print(whole(Frame(server.url, server.live()), Browser(), console.width))
    else:
        _watch(Poller(server))


def _piped() -> Console:
    """Return a console that cuts no line where the output is read by a program."""
    is_cut = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if is_cut else _PIPED_COLUMNS)


class Poller:
    """Asks a server each second, on a thread of its own; `frame` is what is known now.

    Raises ConfigError where the server refuses the first call.
    """

    def __init__(self, server: LiveServer, period_s: float = PERIOD_S) -> None:
        self._server = server
        self._period_s = period_s
        self._answered_s = time.monotonic()
        self._frame = Frame(server.url, None)
        self._is_over = threading.Event()
        try:
            self._take()
        except Unavailable as error:
            self._frame = Frame(server.url, None, str(error))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def frame(self) -> Frame:
        """Return the last snapshot, and what is wrong since."""
        frame = self._frame
        silent_s = time.monotonic() - self._answered_s
        return Frame(frame.url, frame.snapshot, frame.problem, silent_s)

    def close(self) -> None:
        """Ask no more; a call that is under way ends later."""
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.wait(self._period_s):
            try:
                self._take()
            except MuxClusterError as error:
                self._frame = Frame(self._server.url, self._frame.snapshot, str(error))

    def _take(self) -> None:
        self._frame = Frame(self._server.url, self._server.live())
        self._answered_s = time.monotonic()


def _watch(poller: Poller) -> None:
    """Draw until the person quits."""
    console, browser = Console(highlight=False), Browser()
    try:
        with keyboard() as read, Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                frame = poller.frame()
                size = console.size
                live.update(whole(frame, browser, size.width, size.height), refresh=True)
                models = [] if frame.snapshot is None else frame.snapshot["models"]
                numbered = [model["name"] for model in models]
                for key in read(_KEY_S):
                    shown = [model["name"] for model in sorted_models(models, browser.column)]
                    if not browser.press(key, numbered, shown):
                        return
    finally:
        poller.close()
