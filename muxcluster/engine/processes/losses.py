"""Decides when a unit stops replacing its processes, so that no fault restarts them for ever."""

from collections import deque

from muxcluster.core.errors import EngineFailure

MAX_BLANK = 5  # losses of idle workers and of owners in a row without a finished job in between
MAX_IN_A_ROW = 16  # losses of any kind in a row; a poisonous request accounts for two or three
# losses within so many seconds, even if jobs finish between them
MAX_WORKERS, WORKERS_S = 32, 60.0
MAX_OWNERS, OWNERS_S = 8, 300.0


class LossLedger:
    """Counts lost processes of one unit.

    A worker that dies with a job of one row is not counted among those of the last minute.
    """

    # The request of such a job is refused when it happens again (scheduling/faults.py).
    # So these losses are bounded by the requests, and a client that repeats a harmful one must not
    # end the unit.

    def __init__(self, unit_id: str) -> None:
        self._unit_id = unit_id
        self._num_in_a_row = 0
        self._num_blank = 0
        self._workers: deque[float] = deque(maxlen=MAX_WORKERS)
        self._owners: deque[float] = deque(maxlen=MAX_OWNERS)

    def job_finished(self) -> None:
        """Record that the processes work."""
        self._num_in_a_row = self._num_blank = 0

    def worker_lost(self, worker_id: int, num_rows: int, now: float) -> None:
        """Record that a worker died or hung, with a job of `num_rows` rows; 0: it was idle.

        Raises EngineFailure after too many losses.
        """
        what = f"worker {worker_id}"
        self._count(what, is_blank=num_rows == 0)
        if num_rows != 1:
            self._bound(self._workers, WORKERS_S, what, now)

    def owner_lost(self, now: float) -> None:
        """Record that the owner died, hung, or could not load. Raises as `worker_lost`."""
        self._count("the memory owner", is_blank=True)
        self._bound(self._owners, OWNERS_S, "the memory owner", now)

    def _count(self, what: str, *, is_blank: bool) -> None:
        self._num_in_a_row += 1
        self._num_blank += is_blank
        if self._num_blank > MAX_BLANK or self._num_in_a_row > MAX_IN_A_ROW:
            raise EngineFailure(
                f"{what} of {self._unit_id} keeps dying: {self._num_in_a_row} processes were lost "
                "in a row without a finished job, so they are not replaced any more"
            )

    def _bound(self, times: deque[float], window_s: float, what: str, now: float) -> None:
        if len(times) == times.maxlen and now - times[0] < window_s:
            raise EngineFailure(
                f"{what} of {self._unit_id} keeps dying: {len(times) + 1} processes were lost "
                f"within {window_s:.0f} s, so they are not replaced any more"
            )
        times.append(now)
