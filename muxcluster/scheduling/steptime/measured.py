"""What is expected of a model's jobs after a few were tried: lines fitted to their seconds."""

from collections import defaultdict
from collections.abc import Sequence
from math import log

import numpy as np

from muxcluster.core.job import Job, Phase
from muxcluster.scheduling.steptime.line import Line
from muxcluster.scheduling.steptime.mixed import Parts
from muxcluster.scheduling.steptime.seed import Floats, nonnegative
from muxcluster.scheduling.steptime.work import JobWork, work_of

_FEWEST = 3
_OUTLIER = 1.5
"""A job that took so many times what the line says, or one so many-th, is left out."""
_LEAST_PART = 0.01
"""Of a line's mean seconds, what each coefficient makes up at least: jobs that come correct a line
by factors on its coefficients, and would never move a 0."""
_LEAST_FACTORS = Line(0.02, 0.5, 0.1)


class MeasuredSeed:
    """Lines nearest to what was measured in relative error; more jobs may be added at any time.

    Where a share was never tried, the nearest one's line in inverse proportion to the shares. Mixed
    jobs have the factors of `together_s` in a line's place. None where fewer than three jobs tell.
    """

    def __init__(self) -> None:
        self._jobs: dict[tuple[Phase, str, float], list[tuple[JobWork, float]]] = defaultdict(list)

    def observe(self, job: Job, seconds: float) -> None:
        """`job`, alone on the device, took `seconds` above 0."""
        if seconds > 0:
            work = work_of(job)
            self._jobs[work.phase, job.model, job.share].append((work, seconds / job.max_steps))

    def line(self, phase: Phase, model: str, share: float) -> Line | None:
        """Of prefill or decode, or the factors of mixed jobs, which all shares tell together."""
        shares = [
            key[2]
            for key, jobs in self._jobs.items()
            if key[:2] == (phase, model) and len(jobs) >= _FEWEST
        ]
        if not shares:
            return None
        if phase is Phase.MIXED:
            return self._factors(model, shares)
        near = min(shares, key=lambda each: abs(log(each / share)))
        return self._fitted(phase, model, near).scaled((near / share,) * 4)

    def _fitted(self, phase: Phase, model: str, share: float) -> Line:
        jobs = self._jobs[phase, model, share]
        terms = np.array([_terms(phase, work) for work, _ in jobs])
        seconds = np.array([each_s for _, each_s in jobs])
        found = _robust(terms, seconds)
        return Line(*np.maximum(found, _least(terms, seconds)).tolist())

    def _factors(self, model: str, shares: Sequence[float]) -> Line | None:
        terms, seconds = [], []
        for share in shares:
            decode = self.line(Phase.DECODE, model, share)
            prefill = self.line(Phase.PREFILL, model, share)
            if decode is None or prefill is None:
                return None
            jobs = self._jobs[Phase.MIXED, model, share]
            terms += [_parts(decode, prefill, work) for work, _ in jobs]
            seconds += [each_s for _, each_s in jobs]
        found = _robust(np.array(terms), np.array(seconds))
        return Line(*np.maximum(found, _LEAST_FACTORS[:3]).tolist())


def _terms(phase: Phase, work: JobWork) -> tuple[float, float, float]:
    if phase is Phase.DECODE:
        return 1.0, work.num_rows, work.context
    return 1.0, work.num_tokens, work.attention


def _parts(decode: Line, prefill: Line, work: JobWork) -> Parts:
    """What the factors of a mixed job stand before, in their order."""
    first_s = decode.seconds(work.num_rows, work.context)
    second_s = prefill.seconds(work.num_tokens, work.attention)
    small, large = sorted((first_s, second_s))
    shared = min(small, decode.fixed_s)
    return shared, large, small - shared


def _robust(terms: Floats, seconds: Floats) -> Floats:
    """Coefficients ≥ 0 of least squared relative error, and once more without outliers."""
    found = nonnegative(terms, seconds)
    ratios = (terms @ found) / seconds
    is_near = (ratios < _OUTLIER) & (ratios > 1 / _OUTLIER)
    if is_near.all() or np.count_nonzero(is_near) < _FEWEST:
        return found
    return nonnegative(terms[is_near], seconds[is_near])


def _least(terms: Floats, seconds: Floats) -> Floats:
    least: Floats = _LEAST_PART * seconds.mean() / terms.mean(axis=0)
    return least
