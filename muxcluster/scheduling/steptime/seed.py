"""What is expected of a model's jobs before any ran: lines fitted to `placement.cost`."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Phase
from muxcluster.placement.cost import Cost
from muxcluster.placement.shapes.shape import ModelShape
from muxcluster.scheduling.steptime.line import Line

_CUTS = (1.1, 1.3, 1.5, 2.0, 3.0)
"""Multiples of the least prefill tried as the point from which on seconds are linear."""
_SHORTEST = 16
_MOST_PROMPTS = 16
Floats = NDArray[np.float64]


class Seed(Protocol):
    """Where the lines start."""

    def line(self, phase: Phase, model: str, share: float) -> Line | None:
        """Of prefill or decode, or the factors of mixed jobs; None where nothing is known."""
        ...


@dataclass(frozen=True, slots=True)
class SeedModel:
    """A model's shape and the cost model of its GPU (from a profile, or the roofline)."""

    shape: ModelShape
    cost: Cost


class CostSeed:
    """Lines nearest to `muxcluster.placement.cost` in relative error, over jobs that may come.

    Decode: rows by powers of 2 up to max_rows, their contexts from 16 to max_len; on A100 the
    median error for Llama models at 30 to 100 % of the SMs is 1 to 4 %, the greatest 15 %. Prefill:
    1 to 16 prompts, up to max_tokens in all; the line where seconds have grown beyond the least of
    them, the least before: median below 1 %, greatest 16 % (at the corner). A line is fitted in
    about a millisecond; whoever asks keeps it.
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
        """tp: GPUs that work together. max_rows: of a decode job; max_tokens: of a prefill job;
        max_len: of a sequence."""
        self._models, self._tp = models, tp
        self._rows = _powers(1, max_rows)
        self._lengths = _powers(min(_SHORTEST, max_len), max_len)
        self._max_tokens = max_tokens

    def line(self, phase: Phase, model: str, share: float) -> Line | None:
        """Of prefill or decode; None for a model that is not known, and for mixed jobs."""
        found = self._models.get(model)
        if found is None or phase is Phase.MIXED:
            return None
        return self._decode(found, share) if phase is Phase.DECODE else self._prefill(found, share)

    def _decode(self, model: SeedModel, share: float) -> Line:
        jobs = [(rows, length) for rows in self._rows for length in self._lengths]
        seconds = [model.cost.decode_s(model.shape, self._tp, share, *job) for job in jobs]
        counts, lengths = np.array(jobs, dtype=np.float64).T
        found = nonnegative(_terms(counts, counts * lengths), np.array(seconds))
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
        seconds = np.array(found)
        counts, lengths = np.array(jobs, dtype=np.float64).T
        return _bent(_terms(counts * lengths, counts * lengths**2 / 2), seconds)


def _powers(first: int, last: int) -> list[int]:
    """Doubling from first, and last."""
    found = [first]
    while found[-1] * 2 < last:
        found.append(found[-1] * 2)
    return found if found[-1] >= last else [*found, last]


def _terms(new: Floats, attended: Floats) -> Floats:
    return np.stack((np.ones_like(new), new, attended), axis=1)


def _bent(terms: Floats, seconds: Floats) -> Line:
    """The least of the seconds as floor, and the line that with it is nearest."""
    floor_s = float(seconds.min())
    best, best_error = Line(floor_s, 0.0, 0.0), np.inf
    for cut in _CUTS:
        above = seconds >= cut * floor_s
        if np.count_nonzero(above) < len(terms.T):
            continue
        found = nonnegative(terms[above], seconds[above])
        error = np.abs(np.maximum(floor_s, terms @ found) / seconds - 1).mean()
        if error < best_error:
            base_s, per_token_s, per_attended_s = found.tolist()
            best, best_error = Line(base_s, per_token_s, per_attended_s, floor_s), error
    return best


def nonnegative(terms: Floats, seconds: Floats) -> Floats:
    """Coefficients ≥ 0 of least squared relative error: the best of those by any subset."""
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
