"""Finds out from the kernel whether a child process still works."""

# A pulse that is taken from outside needs no thread in the child (which must not have one, see
# workers/owner.py), and it tells a slow job from a hung one: a slow job uses processor time, while
# a stopped or deadlocked process uses none, whatever it was last asked to do.

import os
from dataclasses import dataclass
from pathlib import Path

# Pulses are taken this often within `silence_s`, and as many in a row must fail: had everything
# been frozen for a while (a suspended machine, a paused container), only one fails.
_BEATS = 4

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long, in seconds, child processes may be silent before they are taken for hung."""

    # a worker that runs a job without using processor time, or any stopped process
    silence_s: float = 10.0
    fork_s: float = 10.0  # until an owner has forked a worker
    start_s: float = 60.0  # until a new worker takes jobs
    load_s: float = 60.0  # an owner that loads without using processor time
    # shortest time limit of a job, however busy its worker is; it begins when the worker takes jobs
    job_s: float = 60.0

    @property
    def beat_s(self) -> float:
        """Seconds between two pulses."""
        return self.silence_s / _BEATS

    @property
    def load_beat_s(self) -> float:
        """Seconds between two pulses while the owner loads."""
        return self.load_s / _BEATS


class Pulse:
    """The signs of life of one process; without /proc it always seems alive."""

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._processor_s = -1.0
        self._num_missed = 0

    @property
    def has_missed(self) -> bool:
        return self._num_missed > 0

    @property
    def is_doubtful(self) -> bool:
        """True from half of the allowed silence on."""
        return self._num_missed >= _BEATS // 2

    @property
    def is_silent(self) -> bool:
        """True if it has been silent for too long."""
        return self._num_missed >= _BEATS

    def heard(self) -> None:
        """Record a sign of life from the process itself."""
        self._num_missed = 0

    def beat(self, *, is_busy: bool) -> None:
        """Take the pulse. is_busy: it should compute; else it may sleep, but not be stopped."""
        reading = self._read()
        if reading is None:
            return
        state, processor_s = reading
        # Running, or waiting for a disk: neither can be helped by a kill.
        is_alive = state in "RD" or processor_s > self._processor_s
        if not is_busy:
            is_alive = state not in "Tt"
        self._processor_s = processor_s
        self._num_missed = 0 if is_alive else self._num_missed + 1

    def _read(self) -> tuple[str, float] | None:
        """Return state letter and processor seconds of all threads (proc(5)); None if unknown."""
        try:
            fields = self._stat.read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return fields[0], (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
