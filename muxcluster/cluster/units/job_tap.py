"""Distribution of a unit's drain-once statistics to two readers: metrics and the timeline."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from muxcluster.core.served import JobRecord, UnitStats

MAX_RECORDS = 200_000


class JobTap:
    """Keep the last `max_records` jobs; thread-safe.

    `take` is the unit's `stats`, which returns every finished job once. Each job is returned by
    `pushed()` exactly once and by `timeline()` until it is too old.
    """

    def __init__(self, take: Callable[[], UnitStats], max_records: int = MAX_RECORDS) -> None:
        self._take = take
        self._lock = threading.Lock()
        self._kept: deque[JobRecord] = deque(maxlen=max_records)
        self._unpushed: deque[JobRecord] = deque(maxlen=max_records)

    def pushed(self) -> UnitStats:
        """Return the current state, with the jobs finished since the last call of this method."""
        with self._lock:
            stats = self._read()
            jobs = tuple(self._unpushed)
            self._unpushed.clear()
        return replace(stats, jobs=jobs)

    def peek(self) -> UnitStats:
        """Return the current state without jobs, taking none from other readers."""
        with self._lock:
            return replace(self._read(), jobs=())

    def timeline(self) -> tuple[JobRecord, ...]:
        """The jobs kept, oldest first."""
        with self._lock:
            self._read()
            return tuple(self._kept)

    def _read(self) -> UnitStats:
        stats = self._take()
        self._kept.extend(stats.jobs)
        self._unpushed.extend(stats.jobs)
        return stats
