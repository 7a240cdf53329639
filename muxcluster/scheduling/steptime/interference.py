"""How much slower jobs are beside others, measured; and whom such a measurement corrects."""

from muxcluster.core.job import Phase
from muxcluster.placement.cost.interference import COLOCATION_LOSS
from muxcluster.scheduling.steptime.line import Fit, Line

_EXPECTED = Line(1 + COLOCATION_LOSS, 0.0, 0.0)
_RECENT = 64
_Key = tuple[str, Phase, int]


class Interference:
    """A factor for each (model, phase, number of neighbours), on what a job takes alone.

    A job beside others says two things in one number, and always corrects the factor. While a lone
    job of its model, phase and share was among the last 64, what it takes alone is known and its
    line is left. Where no lone job comes (a busy unit) it corrects the line too, by the seconds
    divided by the factor: then the line follows the work's shape and the factors differ as the
    numbers of neighbours do; their product is right, their common level is not known. Expected at
    first: the loss that `muxcluster.placement.cost` assumes at full use.

    One simulated workload, three models under ADBS, no noise: decode mispredicted by 2.7 to 3.3 %;
    by 3.6 to 6.7 % if a job corrects only one of the two; by 2.5 to 3.1 % if factors are kept by
    which models and phases run beside and at which share: five times as many for little.
    """

    def __init__(self) -> None:
        self._fits: dict[_Key, Fit] = {}
        self._factors: dict[_Key, float] = {}
        self._left: dict[tuple[str, Phase, float], int] = {}

    def factor(self, model: str, phase: Phase, num_beside: int) -> float:
        """1 for a lone job; what was never seen is as with the nearest number of neighbours."""
        if num_beside <= 0:
            return 1.0
        found = self._factors.get((model, phase, num_beside))
        return self._nearest(model, phase, num_beside) if found is None else found

    def leaves_line(self, model: str, phase: Phase, share: float, num_beside: int) -> bool:
        """Count a job that ended; True where it should not correct its line."""
        key = model, phase, share
        if num_beside <= 0:
            self._left[key] = _RECENT
            return False
        left = self._left.get(key, 0)
        self._left[key] = max(0, left - 1)
        return left > 0

    def observe(self, model: str, phase: Phase, num_beside: int, ratio: float) -> None:
        """A job took `ratio` times what it would alone."""
        key = model, phase, num_beside
        fit = self._fits.get(key)
        if fit is None:
            first = self._nearest(model, phase, num_beside) / _EXPECTED.base_s
            fit = self._fits[key] = Fit(_EXPECTED, (first, 1.0, 1.0, 1.0))
        fit.observe(0.0, 0.0, ratio)
        self._factors[key] = fit.line.base_s

    def _nearest(self, model: str, phase: Phase, num_beside: int) -> float:
        seen = [key for key in self._factors if key[:2] == (model, phase)]
        near = min(seen, key=lambda key: abs(key[2] - num_beside), default=None)
        return _EXPECTED.base_s if near is None else self._factors[near]
