"""Time limits of jobs, after which a worker is taken for one in an endless loop."""

from muxcluster.core.job import Job, Phase

_MARGIN = 20.0  # a job may take this many times the slowest time per token so far

_UNMEASURED = 10.0  # limit of the first job of a kind, in multiples of the shortest limit


class JobLimits:
    """Time limits from measured durations, per model and phase."""

    # Per token the smallest jobs are the slowest, so limits err on the long side. A hung process is
    # found much earlier (liveness.py); this is for one that computes for ever.

    def __init__(self, shortest_s: float) -> None:
        self._shortest_s = shortest_s
        self._slowest: dict[tuple[str, Phase], float] = {}

    def limit_s(self, job: Job) -> float:
        """Return the seconds after which `job` is given up."""
        slowest = self._slowest.get((job.model, job.phase))
        if slowest is None:
            return _UNMEASURED * self._shortest_s
        return max(self._shortest_s, _MARGIN * slowest * _num_tokens(job))

    def measured(self, job: Job, seconds: float) -> None:
        """Learn that `job` took `seconds`."""
        kind = (job.model, job.phase)
        self._slowest[kind] = max(self._slowest.get(kind, 0.0), seconds / _num_tokens(job))


def _num_tokens(job: Job) -> int:
    return int(job.rows.counts.sum()) * job.max_steps
