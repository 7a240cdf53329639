"""Compiles where it takes no time from the steps of running requests.

Priorities are of threads, and an ordinary user may only lower them. They hold among processes of
one session: Linux divides the processors between sessions first (`sched_autogroup_enabled`), which
is why a unit's processes have process groups but no sessions of their own.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

# Ray gives its workers a low priority, which this process then has from its start.
_OWN_NICE = os.getpriority(os.PRIO_PROCESS, 0)
# A thread at 10 gets a tenth of a processor that others at 0 use all the time; 19 is the most.
NICE = min(19, _OWN_NICE + 10)
# Of processor time. Grammars of everyday requests take less, and are not held up by a busy machine.
QUICK_CPU_S = 0.005
# How often it is looked whether a long one goes on, and the part of that time which it must get.
PATIENCE_S = 0.5
LEAST_SHARE = 0.25


class Starved(Exception):
    """The work gets no processor, as others use all of them all the time."""

    def __init__(self, is_over: threading.Event) -> None:
        """is_over: set when the work, which goes on, has ended."""
        super().__init__("no processor is free")
        self.is_over = is_over


def lower() -> None:
    """Give this thread a low priority."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def run_quietly(work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises; it runs on a thread of its own.

    Its priority is low, and the lowest once it has taken QUICK_CPU_S: then it runs only where a
    processor has nothing else to do, and whoever wants that processor gets it at once. A thread
    with a low, but not the lowest priority may finish a time slice first: a step that waits for
    several threads, again and again, loses more by that than the slices' sum. Raises Starved if the
    work gets too little; it then goes on, for nobody.
    """
    task = _Task(work)
    threading.Thread(target=task.run, name="quiet", daemon=True).start()
    left_s = QUICK_CPU_S
    while left_s > 0.0 and not task.is_over.wait(left_s):
        left_s = QUICK_CPU_S - task.cpu_s()
    if not task.is_over.is_set():
        task.lower_most()
    before_s = task.cpu_s()
    while not task.is_over.wait(PATIENCE_S):
        now_s = task.cpu_s()
        if now_s - before_s < LEAST_SHARE * PATIENCE_S and not task.is_over.is_set():
            raise Starved(task.is_over)
        before_s = now_s
    return task.result()


class _Task(Generic[T]):
    """Work on a thread of its own."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.is_over = threading.Event()
        self._work = work
        self._thread_id = 0
        self._clock: int | None = None  # of the thread's processor time
        self._result: T
        self._error: BaseException | None = None

    def run(self) -> None:
        self._thread_id = threading.get_native_id()
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        lower()
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
            self._error = error
        self.is_over.set()

    def cpu_s(self) -> float:
        """Seconds of processor time so far; 0 before it begins and after its end."""
        if self._clock is not None:
            with contextlib.suppress(OSError):  # an ended thread has no clock
                return time.clock_gettime(self._clock)
        return 0.0

    def lower_most(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # Linux has it, if it is allowed
            os.sched_setscheduler(self._thread_id, os.SCHED_IDLE, os.sched_param(0))

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result
