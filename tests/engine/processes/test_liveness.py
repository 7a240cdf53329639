"""Pulses of real processes: asleep, stopped, spinning, gone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from muxcluster.engine.processes.liveness import Pulse


@contextmanager
def child(code: str) -> Iterator[int]:
    """A Python process that runs `code` after it said that it started."""
    command = [sys.executable, "-c", f"import time; print('up', flush=True)\n{code}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def settle(pid: int, state: str) -> None:
    """Wait until the kernel shows the process in `state`."""
    deadline = time.monotonic() + 20.0
    while True:
        with open(f"/proc/{pid}/stat") as stat:
            if stat.read().rpartition(")")[2].split()[0] == state:
                return
        assert time.monotonic() < deadline
        time.sleep(0.01)


def beats(pulse: Pulse, count: int, *, is_busy: bool) -> None:
    for _ in range(count):
        pulse.beat(is_busy=is_busy)


def test_a_sleeper_is_hung_only_where_it_should_compute() -> None:
    with child("time.sleep(60)") as pid:
        settle(pid, "S")
        pulse = Pulse(pid)
        beats(pulse, 10, is_busy=False)
        assert not pulse.has_missed
        beats(pulse, 1, is_busy=True)
        assert not pulse.is_doubtful
        beats(pulse, 2, is_busy=True)
        assert pulse.is_doubtful
        assert not pulse.is_silent
        beats(pulse, 2, is_busy=True)
        assert pulse.is_silent
        pulse.heard()
        assert not pulse.is_doubtful


def test_a_stopped_process_is_hung_idle_or_busy() -> None:
    with child("time.sleep(60)") as pid:
        os.kill(pid, signal.SIGSTOP)
        settle(pid, "T")
        for is_busy in (False, True):
            pulse = Pulse(pid)
            beats(pulse, 5, is_busy=is_busy)
            assert pulse.is_silent


def test_a_process_that_computes_is_alive() -> None:
    with child("while True: pass") as pid:
        pulse = Pulse(pid)
        for _ in range(10):
            pulse.beat(is_busy=True)
            assert not pulse.is_doubtful


def test_a_process_that_cannot_be_seen_seems_alive() -> None:
    pulse = Pulse(2**22 + 1)  # above the kernel's largest process id
    beats(pulse, 10, is_busy=True)
    assert not pulse.is_silent
