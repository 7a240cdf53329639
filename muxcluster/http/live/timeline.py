"""How much of its SMs a unit gave to each model and phase lately."""

from collections.abc import Iterable
from typing import Any

from muxcluster.core.served import JobRecord

BIN_S = 0.25
NUM_BINS = 120  # half a minute


class ShareTimeline:
    """Mean SM shares of a unit by model and phase, in the last `NUM_BINS` bins of its clock.

    A job counts when it has ended: one that runs for long shows late, in all bins at once.
    """

    def __init__(self) -> None:
        self._bins: dict[int, dict[tuple[str, str], float]] = {}

    def add(self, jobs: Iterable[JobRecord], now_s: float) -> None:
        """Count jobs that have ended, and forget bins that are too old; now_s: the unit's."""
        first, last = _bin_at(now_s) - NUM_BINS, _bin_at(now_s)
        for job in jobs:
            numbers = range(max(first, _bin_at(job.start_s)), min(last, _bin_at(job.end_s)) + 1)
            for number in numbers:
                start_s = number * BIN_S
                seconds = min(job.end_s, start_s + BIN_S) - max(job.start_s, start_s)
                shares = self._bins.setdefault(number, {})
                series = (job.model, job.phase)
                shares[series] = shares.get(series, 0.0) + job.share * seconds / BIN_S
        for number in [number for number in self._bins if number < first]:
            del self._bins[number]

    def told(self, now_s: float) -> dict[str, Any]:
        """Return {"bin_s", "series": [{"model", "phase", "shares": one a bin, oldest first}]}.

        The bin of `now_s` is not over and is left out.
        """
        last = _bin_at(now_s)
        bins = [self._bins.get(number, {}) for number in range(last - NUM_BINS, last)]
        found = sorted({series for shares in bins for series in shares})
        return {
            "bin_s": BIN_S,
            "series": [
                {
                    "model": series[0],
                    "phase": series[1],
                    "shares": [round(shares.get(series, 0.0), 3) for shares in bins],
                }
                for series in found
            ],
        }


def _bin_at(seconds: float) -> int:
    return int(seconds // BIN_S)
