"""The mask process: reads vocabularies, then forks what handles grammars and may die of them.

Its children share the vocabularies, so that one is replaced in milliseconds:
- the server (`server.py`), which computes masks;
- a process for each grammar that is checked, under limits of time and memory.
It has one thread, and another while that forks, ends with its unit, whose end of a socket closes,
and takes its children along.
"""

import gc
import hashlib
import os
import resource
import selectors
import shutil
import signal
import socket
import sys
import threading
import time
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from muxcluster.constraints.matching import BadGrammar, TokenMasks
from muxcluster.constraints.process.blame import Blame
from muxcluster.constraints.process.frames import receive, send
from muxcluster.constraints.process.priority import Starved, lower, run_quietly
from muxcluster.constraints.process.server import serve
from muxcluster.constraints.rows import MaskModel
from muxcluster.constraints.vocabulary import load_vocabulary
from muxcluster.core.errors import LoadError

# Of processor time, which a busy machine does not change; whole seconds, as RLIMIT_CPU counts. The
# largest real schemas take under one.
CHECK_CPU_S = 2
CHECK_WALL_S = 60.0  # on the clock, for a process that was stopped
CHECK_BYTES = 512 * 2**20  # of address space, beyond the vocabularies
_THREAD_BYTES = 128 * 2**20  # of address space, which the C library reserves for a second thread
SERVER_BYTES = 4 * 2**30  # the same for all grammars and matchers together
MOST_CHECKS = 4  # at a time; the rest wait
MOST_VERDICTS = 1024  # kept: the same schema comes with many requests
GRACE_S = 0.2  # before a server that ends again is started again
_STARVED = "starved"  # instead of a verdict, which begins with a dot


def main() -> None:
    """Arguments: descriptors of the unit's socket and of the socket that workers connect to, and
    the folder of the latter."""
    control = socket.socket(fileno=int(sys.argv[1]))
    listener = socket.socket(fileno=int(sys.argv[2]))
    # No other thread does anything while one forks.
    warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
    try:
        Keeper(control, listener, *_loaded(control)).run()
    except EOFError:
        # The unit is gone. It may have been killed, and then nobody else removes this.
        shutil.rmtree(Path(sys.argv[3]), ignore_errors=True)


def _loaded(control: socket.socket) -> tuple[dict[str, TokenMasks], dict[str, str]]:
    """Return the models that the unit names, and why others have no vocabulary."""
    (models,), _ = receive(control)
    masks: dict[str, TokenMasks] = {}
    failures: dict[str, str] = {}
    same: dict[tuple[object, ...], TokenMasks] = {}
    for each in models:
        model = MaskModel(*each)
        key = (os.path.realpath(model.path), model.vocab_size, model.end_tokens)
        try:
            if key not in same:
                same[key] = TokenMasks(load_vocabulary(model))
            masks[model.name] = same[key]
        except (LoadError, ValueError, OSError) as error:
            failures[model.name] = f"{error}"
    return masks, failures


@dataclass(slots=True)
class _Check:
    """A grammar that is to be checked.

    digest: names it among the verdicts. is_urgent: with the lowest priority it got no processor.
    """

    number: int
    model: str
    grammar: str
    digest: bytes
    is_urgent: bool = False
    pid: int = 0
    pipe: int = -1
    until_s: float = 0.0


class Keeper:
    """Keeps a server alive, and checks grammars."""

    def __init__(
        self,
        control: socket.socket,
        listener: socket.socket,
        masks: Mapping[str, TokenMasks],
        failures: Mapping[str, str],
    ) -> None:
        self._control = control
        self._listener = listener
        self._masks = masks
        self._failures = failures
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._waiting: deque[_Check] = deque()
        self._running: dict[int, _Check] = {}  # by pipe
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()  # "" for a good grammar
        self._ending: list[int] = []  # starved checks, which need some time to end, too
        self._blame = Blame()
        self._server_pid = 0
        self._server_link: socket.socket | None = None

    def run(self) -> None:
        """Work until the unit is gone. Raises EOFError or OSError then."""
        gc.freeze()  # or the children would copy what they only read
        try:
            self._start_server()
            send(self._control, ("ready",))
            while True:
                for key, _ in self._selector.select(self._timeout_s()):
                    self._hear(key.fileobj)
                self._end_late()
        finally:
            self._kill(self._server_pid)
            for check in self._running.values():
                self._kill(check.pid)

    def _hear(self, source: object) -> None:
        if source is self._control:
            (number, model, grammar), _ = receive(self._control)
            self._take(number, model, grammar)
        elif source is self._server_link:
            self._replace_server()
        elif isinstance(source, int):
            self._finish(self._running[source])

    def _timeout_s(self) -> float | None:
        if not self._running:
            return None
        first_s = min(check.until_s for check in self._running.values())
        return max(0.0, first_s - time.monotonic())

    # The server.

    def _start_server(self) -> None:
        ours, theirs = socket.socketpair()

        def child() -> None:
            ours.close()
            limit_memory(SERVER_BYTES)
            serve(self._listener, theirs, self._masks, self._blame)

        self._server_pid = self._fork(child)
        theirs.close()
        self._server_link = ours
        self._selector.register(ours, selectors.EVENT_READ)

    def _replace_server(self) -> None:
        assert self._server_link is not None
        self._selector.unregister(self._server_link)
        self._server_link.close()
        self._kill(self._server_pid)
        self._blame.server_died()
        send(self._control, ("server lost",))
        time.sleep(GRACE_S)
        self._start_server()

    # Checks.

    def _take(self, number: int, model: str, grammar: str) -> None:
        digest = hashlib.sha256(f"{model}\n{grammar}".encode(errors="surrogatepass")).digest()
        verdict = self._verdicts.get(digest)
        if model in self._failures:
            verdict = f"the model cannot be constrained: {self._failures[model]}"
        if verdict is not None:
            self._tell(number, verdict)
            return
        self._waiting.append(_Check(number, model, grammar, digest))
        self._start_checks()

    def _start_checks(self) -> None:
        while self._waiting and len(self._running) < MOST_CHECKS:
            check = self._waiting.popleft()
            check.pipe, theirs = os.pipe()

            def child(check: _Check = check, theirs: int = theirs) -> None:
                _check(self._masks.get(check.model), check, theirs)

            check.pid = self._fork_quietly(child)
            os.close(theirs)
            check.until_s = time.monotonic() + CHECK_WALL_S
            self._running[check.pipe] = check
            self._selector.register(check.pipe, selectors.EVENT_READ)

    def _end_late(self) -> None:
        now_s = time.monotonic()
        for check in self._running.values():
            if check.until_s <= now_s:
                os.kill(check.pid, signal.SIGKILL)  # its pipe ends with it

    def _finish(self, check: _Check) -> None:
        """A check's process has written its verdict, or died."""
        with os.fdopen(check.pipe, "rb") as pipe:
            self._selector.unregister(check.pipe)
            del self._running[check.pipe]
            text = pipe.read().decode(errors="replace")
        self._reap()
        if text == _STARVED:
            self._ending.append(check.pid)
            check.is_urgent = True
            self._waiting.appendleft(check)
            self._start_checks()
            return
        _, status = os.waitpid(check.pid, 0)
        if text:
            self._verdicts[check.digest] = text[1:]
            while len(self._verdicts) > MOST_VERDICTS:
                self._verdicts.popitem(last=False)
            self._tell(check.number, text[1:])
        else:  # not remembered: on another day it may be quicker
            self._tell(check.number, _verdict_of(os.waitstatus_to_exitcode(status)))
        self._start_checks()

    def _reap(self) -> None:
        """Take leave of starved checks that have ended."""
        self._ending = [pid for pid in self._ending if os.waitpid(pid, os.WNOHANG)[0] == 0]

    def _tell(self, number: int, verdict: str) -> None:
        send(self._control, ("checked", number, verdict or None))

    # Processes.

    def _fork(self, child: Callable[[], None]) -> int:
        """Run `child` in a process of its own, which has none of our descriptors; return its id."""
        pid = os.fork()
        if pid == 0:
            self._become(child)
        return pid

    def _fork_quietly(self, child: Callable[[], None]) -> int:
        """As `_fork`, from a thread of low priority, which the process then has.

        Forking copies the tables of our memory: 5 ms of processor time with 128,000 tokens.
        """
        pids: list[int] = []

        def fork() -> None:
            lower()
            pids.append(self._fork(child))

        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
        if not pids:
            raise OSError("no process could be forked")
        return pids[0]

    def _become(self, child: Callable[[], None]) -> NoReturn:
        status = 1
        try:
            self._control.close()
            self._selector.close()
            for pipe in self._running:
                os.close(pipe)
            if self._server_link is not None:
                self._server_link.close()
            child()
            status = 0
        finally:
            os._exit(status)

    @staticmethod
    def _kill(pid: int) -> None:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _check(masks: TokenMasks | None, check: _Check, pipe: int) -> None:
    """Compile a grammar and compute its first mask; write to `pipe` what is wrong, after a byte, or
    `_STARVED`."""
    # A second more, or both limits would come at once, and the signal could not tell which.
    resource.setrlimit(resource.RLIMIT_CPU, (CHECK_CPU_S, CHECK_CPU_S + 1))
    limit_memory(CHECK_BYTES + _THREAD_BYTES)
    # The allocator says there that memory is used up.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        if masks is None:
            text = "there is no such model"
        elif check.is_urgent:
            text = _problem(masks, check.grammar)
        else:
            text = run_quietly(partial(_problem, masks, check.grammar))
        answer = "." + text
    except MemoryError:
        answer = "." + _verdict_of(-signal.SIGABRT)
    except Starved:
        answer = _STARVED
    os.write(pipe, answer.encode(errors="replace"))
    os.close(pipe)  # it is read to its end, and a starved thread may take long to die


def _problem(masks: TokenMasks, grammar: str) -> str:
    try:
        masks.prepared(grammar)
    except BadGrammar as error:
        return f"{error}" or "it cannot be compiled"
    return ""


def _verdict_of(status: int) -> str:
    """Return why a check's process died."""
    if status == -signal.SIGXCPU:
        return f"it takes more than {CHECK_CPU_S} s to compile"
    if status == -signal.SIGKILL:
        return f"it was not compiled within {CHECK_WALL_S:g} s"
    if status == -signal.SIGABRT:
        return f"it takes more than {CHECK_BYTES // 2**20} MiB of memory to compile"
    return f"its compiler failed (status {status})"


def limit_memory(num_bytes: int) -> None:
    """Limit this process to so much address space more than it has."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return  # not Linux: only the limit of time holds
    limit = pages * resource.getpagesize() + num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main()
