"""What is expected of a model's jobs before any ran: lines fitted to a cost model or to trials."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import log
from typing import Protocol

import numpy as np

from muxcluster.core.job import Job, Phase
from muxcluster.placement.cost import Cost
from muxcluster.placement.shapes.shape import ModelShape
from muxcluster.scheduling.steptime.line import Floats, JobWork, Line, work_of

_CUTS = (1.1, 1.3, 1.5, 2.0, 3.0)  # × the least prefill: where seconds may begin to be linear
_SHORTEST = 16  # tokens of a sequence in the fit's grid
_MOST_PROMPTS = 16  # of a prefill job there
_FEWEST = 3  # tried jobs that a line is fitted to
_OUTLIER = 1.5  # a tried job further from its line than this factor is left out
# Of a line's mean seconds, what each coefficient makes up at least: jobs that come correct a line
# by factors on its coefficients, and would never move a 0.
_LEAST_PART = 0.01
_LEAST_FACTORS = (0.02, 0.5, 0.1)  # of mixed jobs, for the same reason


class Seed(Protocol):
    """Where the lines start."""

    def line(self, phase: Phase, model: str, share: float) -> Line | None:
        """Return the line of prefill or decode, or the factors of `mixed_s`; None: not known."""
        ...


@dataclass(frozen=True, slots=True)
class SeedModel:
    """A model's shape and the cost model of its GPU."""

    shape: ModelShape
    cost: Cost  # from a profile, or the roofline


class CostSeed:
    """Lines nearest to `muxcluster.placement.cost` in relative error, over jobs that may come.

    Decode: rows by powers of 2 up to max_rows, their contexts from 16 to max_len; on A100 the
    median error for Llama models at 30 to 100 % of the SMs is 1 to 4 %, the greatest 15 %. Prefill:
    1 to 16 prompts, up to max_tokens in all; the line where seconds have grown beyond the least of
    them, the least before: median below 1 %, greatest 16 % (at the corner). Fitting a line takes
    about a millisecond, and nothing is cached.
    """

    def __init__(
        self,
        models: Mapping[str, SeedModel],
        tp: int = 1,
        *,
        max_rows: int = 256,
        max_tokens: int = 4096,
        max_len: int = 4096,
    ) -> None:
        """tp: GPUs that work together. max_rows: of a decode job. max_tokens: of a prefill job.
        max_len: tokens of a sequence."""
        self._models, self._tp = models, tp
        self._rows = _powers(1, max_rows)
        self._lengths = _powers(min(_SHORTEST, max_len), max_len)
        self._max_tokens = max_tokens

    def line(self, phase: Phase, model: str, share: float) -> Line | None:
        """Return the line; None for a model that is not known, and for mixed jobs."""
        found = self._models.get(model)
        if found is None or phase is Phase.MIXED:
            return None
        return self._decode(found, share) if phase is Phase.DECODE else self._prefill(found, share)

    def _decode(self, model: SeedModel, share: float) -> Line:
        jobs = [(rows, length) for rows in self._rows for length in self._lengths]
        seconds = [model.cost.decode_s(model.shape, self._tp, share, *job) for job in jobs]
        counts, lengths = np.array(jobs, dtype=np.float64).T
        found = _nonnegative(_terms(counts, counts * lengths), np.array(seconds))
        return Line(*found.tolist())

    def _prefill(self, model: SeedModel, share: float) -> Line:
        most = self._max_tokens
        jobs = [
            (prompts, length)
            for prompts in _powers(1, _MOST_PROMPTS)
            for length in self._lengths
            if prompts * length <= most
        ] or [(1, most)]
        found = [model.cost.prefill_s(model.shape, self._tp, share, *job) for job in jobs]
        counts, lengths = np.array(jobs, dtype=np.float64).T
        return _bent(_terms(counts * lengths, counts * lengths**2 / 2), np.array(found))


class MeasuredSeed:
    """Lines nearest to what was measured in relative error; more jobs may be added at any time.

    Where a share was never tried, the nearest one's line in inverse proportion to the shares. None
    where fewer than three jobs were tried.
    """

    def __init__(self) -> None:
        self._jobs: dict[tuple[Phase, str, float], list[tuple[JobWork, float]]] = defaultdict(list)

    def observe(self, job: Job, seconds: float) -> None:
        """Learn that `job`, alone on the device, took `seconds` above 0."""
        if seconds > 0:
            work = work_of(job)
            self._jobs[work.phase, job.model, job.share].append((work, seconds / job.max_steps))

    def line(self, phase: Phase, model: str, share: float) -> Line | None:
        """Return the line, or the factors of mixed jobs, which come from all shares together."""
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
        works, seconds = np.array([work for work, _ in jobs]), np.array([each for _, each in jobs])
        first = 0 if phase is Phase.DECODE else 2
        terms = _terms(works[:, first], works[:, first + 1])
        found = _robust(terms, seconds)
        least = _LEAST_PART * seconds.mean() / terms.mean(axis=0)
        return Line(*np.maximum(found, least).tolist())

    def _factors(self, model: str, shares: Sequence[float]) -> Line | None:
        terms, seconds = [], []
        for share in shares:
            decode = self.line(Phase.DECODE, model, share)
            prefill = self.line(Phase.PREFILL, model, share)
            if decode is None or prefill is None:
                return None
            jobs = self._jobs[Phase.MIXED, model, share]
            terms += [_mixed_terms(decode, prefill, work) for work, _ in jobs]
            seconds += [each_s for _, each_s in jobs]
        found = _robust(np.array(terms), np.array(seconds))
        return Line(*np.maximum(found, _LEAST_FACTORS).tolist())


def _mixed_terms(decode: Line, prefill: Line, work: JobWork) -> tuple[float, float, float]:
    """Return what the factors of `mixed_s` multiply, in their order."""
    first_s = decode.seconds(work.num_rows, work.context)
    second_s = prefill.seconds(work.num_tokens, work.attention)
    small, large = sorted((first_s, second_s))
    shared = min(small, decode.fixed_s)
    return shared, large, small - shared


def _powers(first: int, last: int) -> list[int]:
    found = [first]
    while found[-1] * 2 < last:
        found.append(found[-1] * 2)
    return found if found[-1] >= last else [*found, last]


def _terms(new: Floats, attended: Floats) -> Floats:
    return np.stack((np.ones_like(new), new, attended), axis=1)


def _bent(terms: Floats, seconds: Floats) -> Line:
    """Return the nearest line that has the least of `seconds` as its floor."""
    floor_s = float(seconds.min())
    best, best_error = Line(floor_s, 0.0, 0.0), np.inf
    for cut in _CUTS:
        above = seconds >= cut * floor_s
        if np.count_nonzero(above) < len(terms.T):
            continue
        found = _nonnegative(terms[above], seconds[above])
        error = np.abs(np.maximum(floor_s, terms @ found) / seconds - 1).mean()
        if error < best_error:
            base_s, per_token_s, per_attended_s = found.tolist()
            best, best_error = Line(base_s, per_token_s, per_attended_s, floor_s), error
    return best


def _robust(terms: Floats, seconds: Floats) -> Floats:
    """Return `_nonnegative` coefficients, fitted once more without outliers."""
    found = _nonnegative(terms, seconds)
    ratios = (terms @ found) / seconds
    is_near = (ratios < _OUTLIER) & (ratios > 1 / _OUTLIER)
    if is_near.all() or np.count_nonzero(is_near) < _FEWEST:
        return found
    return _nonnegative(terms[is_near], seconds[is_near])


def _nonnegative(terms: Floats, seconds: Floats) -> Floats:
    """Return coefficients ≥ 0 of least squared relative error: the best of those by any subset."""
    weighted = terms / seconds[:, None]
    best, best_error = np.zeros(terms.shape[1]), np.inf
    for size in range(1, terms.shape[1] + 1):
        for chosen in combinations(range(terms.shape[1]), size):
            columns = list(chosen)
            found = np.linalg.lstsq(weighted[:, columns], np.ones(len(terms)), rcond=None)[0]
            error = float(((weighted[:, columns] @ found - 1) ** 2).sum())
            if (found >= 0).all() and error < best_error:
                best, best_error = np.zeros(terms.shape[1]), error
                best[columns] = found
    return best
