"""The linear models of one phase, by model and SM share; unseen shares borrow from seen ones."""

from collections.abc import Callable
from math import log

from muxcluster.scheduling.steptime.line import EVEN, LEAST, MOST, Fit, Line

_FEWEST = 8
"""Observations before there is a line without a prior."""
_FREE = (1e-3, 1e3)
"""Bounds of coefficients whose start is only a guess from the first observations."""
_TRUST = 0.02
"""In the proportions of that guess."""
BASE_PART = 0.8
"""Of the first observations' mean, what is taken not to grow; the rest grows with both counts."""
NOTHING = Line(0.0, 0.0, 0.0)
Prior = Callable[[str, float], Line | None]
"""The expected line of (model, SM share); None where nothing is known."""
_Key = tuple[str, float]


class LinesByShare:
    """Lines by (model, SM share).

    prior: asked once for each. Without one, a line is 0 everywhere (so that work is tried, not
    refused) until 8 observations, or until another share of the model has a line.
    """

    def __init__(
        self, prior: Prior, bounds: tuple[float, float] = (LEAST, MOST), trust: float = 1.0
    ) -> None:
        """bounds, trust: of fits that start from the prior."""
        self._prior, self._bounds, self._prior_trust = prior, bounds, trust
        self._priors: dict[_Key, Line | None] = {}
        self._fits: dict[_Key, Fit] = {}
        self._lines: dict[_Key, Line] = {}
        self._borrowers: set[_Key] = set()
        """Shares that were asked for and never seen; their lines follow the nearest seen one."""
        self._first: dict[_Key, list[tuple[float, float, float]]] = {}
        """Observations that wait until there are enough."""

    def line(self, model: str, share: float) -> Line:
        """As it is now."""
        found = self._lines.get((model, share))
        if found is None:
            found = self._lines[model, share] = self._borrowed(model, share)
            self._borrowers.add((model, share))
        return found

    def is_expected(self, model: str, share: float) -> bool:
        """There is a prior."""
        return self._expected(model, share) is not None

    def observe(
        self, model: str, share: float, new: float, attended: float, seconds: float
    ) -> None:
        """A job of so many new and attended tokens took `seconds`."""
        key = model, share
        fit = self._fits.get(key) or self._begun(key, new, attended, seconds)
        if fit is None:
            return
        fit.observe(new, attended, seconds)
        self._lines[key] = fit.line
        for each in self._borrowers:
            if each[0] == model:
                self._lines[each] = self._borrowed(*each)

    def _begun(self, key: _Key, new: float, attended: float, seconds: float) -> Fit | None:
        """The model for a first observation of a share; None while it waits for more."""
        fit = self._start(*key)
        if fit is None:
            first = self._first.setdefault(key, [])
            first.append((new, attended, seconds))
            if len(first) < _FEWEST:
                return None
            fit = Fit(_guess(first), bounds=_FREE, trust=_TRUST)
            for each in self._first.pop(key)[:-1]:
                fit.observe(*each)
        self._fits[key] = fit
        self._borrowers.discard(key)
        return fit

    def _borrowed(self, model: str, share: float) -> Line:
        fit = self._start(model, share)
        return NOTHING if fit is None else fit.line

    def _start(self, model: str, share: float) -> Fit | None:
        """At the prior times the gains of the nearest seen share; without a prior, that share's
        line in inverse proportion to the shares."""
        near = self._nearest(model, share)
        prior = self._expected(model, share)
        if prior is not None:
            gains = EVEN if near is None else self._fits[near].gains
            return Fit(prior, gains, self._bounds, self._prior_trust)
        if near is None:
            return None
        factor = near[1] / share
        return Fit(self._fits[near].line.scaled((factor,) * 4), bounds=_FREE, trust=_TRUST)

    def _nearest(self, model: str, share: float) -> _Key | None:
        seen = [key for key in self._fits if key[0] == model]
        return min(seen, key=lambda key: abs(log(key[1] / share)), default=None)

    def _expected(self, model: str, share: float) -> Line | None:
        key = model, share
        if key not in self._priors:
            self._priors[key] = self._prior(model, share)
        return self._priors[key]


def _guess(first: list[tuple[float, float, float]]) -> Line:
    new, attended, seconds = (sum(each) / len(first) for each in zip(*first, strict=True))
    rest_s = (1 - BASE_PART) / 2 * seconds
    return Line(
        BASE_PART * seconds,
        rest_s / new if new > 0 else 0.0,
        rest_s / attended if attended > 0 else 0.0,
    )
