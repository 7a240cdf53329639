"""Seconds of a mixed job, one forward over prompts and decodes, from those of its two parts."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported when they are first used: most processes need none

_PULL = 0.0003  # towards the usual factors, per measured cell: matters only where cells are few


class MixedFactors(NamedTuple):
    """seconds = shared · min(smaller, fixed) + large · larger + rest · max(0, smaller - fixed).

    smaller, larger: the parts by their seconds. fixed: what a decode step takes whatever its rows
    (weights read, kernels launched), all of which may be paid once for both. The scheduler predicts
    mixed jobs by the same formula (scheduling/steptime/line.py).
    """

    shared: float
    large: float
    rest: float

    def seconds(self, prefill_s: float, decode_s: float, fixed_s: float) -> float:
        """Seconds of the whole, at least the larger part; never less for a larger part."""
        large, small = (prefill_s, decode_s) if prefill_s > decode_s else (decode_s, prefill_s)
        shared = small if small < fixed_s else fixed_s
        both_s = self.shared * shared + self.large * large + self.rest * (small - shared)
        return both_s if both_s > large else large


_USUAL = MixedFactors(0.5, 1.0, 0.5)


def usual_mixed_s(prefill_s: float, decode_s: float) -> float:
    """The larger part and half of the smaller one, if no mixed job was measured: the weights are
    read once, and launches are shared."""
    return max(prefill_s, decode_s) + min(prefill_s, decode_s) / 2


class MeasuredMix(NamedTuple):
    """A measured mixed job and its parts, in seconds."""

    prefill_s: float
    decode_s: float
    fixed_s: float
    mixed_s: float


def fitted_factors(measured: Sequence[MeasuredMix]) -> MixedFactors:
    """The factors of least squared relative error, none negative. measured: one job at least."""
    prefill_s, decode_s, fixed_s, mixed_s = np.array(measured, dtype=np.float64).T
    small, large = np.minimum(prefill_s, decode_s), np.maximum(prefill_s, decode_s)
    shared = np.minimum(small, fixed_s)
    terms = np.stack((shared, large, small - shared), axis=1) / mixed_s[:, None]
    pull = (_PULL * len(measured)) ** 0.5
    terms = np.concatenate((terms, pull * np.eye(3)))
    wanted = np.concatenate((np.ones(len(measured)), pull * np.array(_USUAL)))
    return MixedFactors(*scipy.optimize.nnls(terms, wanted)[0].tolist())
