"""How far predictions were off: the last few hundred of each model and phase."""

from collections import deque
from dataclasses import dataclass

import numpy as np

_WINDOW = 512


@dataclass(frozen=True, slots=True)
class PredictionError:
    """Of the predictions of one model and phase, made before the job's end was known.

    count: ever; the others are of the last 512. mean, p90: of |predicted / actual - 1|. bias: mean
    of predicted / actual - 1, above 0 where jobs are faster than predicted.
    """

    count: int
    mean: float
    p90: float
    bias: float


class ErrorWindow:
    """The last relative errors of one model and phase."""

    __slots__ = ("_count", "_errors")

    def __init__(self) -> None:
        self._errors: deque[float] = deque(maxlen=_WINDOW)
        self._count = 0

    def add(self, predicted_s: float, actual_s: float) -> None:
        """actual_s: above 0."""
        self._count += 1
        self._errors.append(predicted_s / actual_s - 1)

    def error(self) -> PredictionError:
        """Of at least one prediction."""
        errors = np.array(self._errors)
        off = np.abs(errors)
        p90 = float(np.percentile(off, 90))
        return PredictionError(self._count, float(off.mean()), p90, float(errors.mean()))
