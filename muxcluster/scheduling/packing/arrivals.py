"""How long a job may take before interactive requests that come meanwhile miss their targets."""

import math

import numpy as np
from numpy.typing import NDArray

from muxcluster.scheduling.packing.batch import Draft, Turn
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.steptime.model import StepTimes

_LATE = 0.01  # of requests that come at a random moment of the job: targets are met by 99 %
_WORTH = 2.0  # jobs of one token that a job with batch rows may last, if targets are that tight
_LONGEST_S = 3600.0  # a later target bounds no job
_RENEWED = 8  # jobs learnt from after which a bound is found again


def longest_wait(slacks_s: NDArray[np.float64]) -> float:
    """Return the longest job amid which requests may come with at most 1 in 100 too late.

    slacks_s: [n] seconds that each could wait. They are equally likely, as are the moments of the
    job: one with slack s is late in a job of t seconds with probability max(0, 1 - s / t). Those
    without slack do not count; inf where no other is left.
    """
    slacks_s = np.sort(slacks_s[slacks_s > 0])
    count = len(slacks_s)
    if count == 0:
        return math.inf
    # With k slacks below t, k - sum / t of them are late: t is where that is 1 % of all.
    late = np.arange(1, count + 1) - _LATE * count
    is_bound = late > 0
    candidates = slacks_s.cumsum()[is_bound] / late[is_bound]
    following = np.append(slacks_s[1:], np.inf)[is_bound]
    return float(candidates[(candidates <= following).argmax()])


def _slacks(
    ttft_s: NDArray[np.float64], own_s: NDArray[np.float64], least_s: float, margin: float
) -> NDArray[np.float64]:
    """Return how long requests could wait before jobs of `own_s`, the margin included; [n].

    0 for those that no job, which takes `least_s`, leaves in time: they bind nobody. For others no
    less than two such jobs, margin or not, or batch work would only read weights.
    """
    ttft_s = np.minimum(ttft_s, _LONGEST_S)
    most_s = ttft_s - own_s
    slacks_s = np.maximum(ttft_s / margin - own_s, np.minimum(most_s, _WORTH * least_s))
    return np.where(most_s > least_s, slacks_s, 0.0)


class ArrivalBounds:
    """What interactive requests that are not here yet leave for a job, by what came of late."""

    def __init__(self, times: StepTimes) -> None:
        self._times = times
        self._kept: dict[tuple[str, str, float], tuple[tuple[int, int], float]] = {}

    def wait_s(
        self, model: ModelState, draft: Draft, turn: Turn, step_s: float, margin: float
    ) -> float:
        """Return how long a job may take amid which requests of `model` come; inf: none come.

        step_s: a step of the rows that decode beside their prompts; margin: of first tokens.
        """
        if not model.arrivals.are_expected(turn.now):
            return math.inf
        # The bound moves slowly, and finding it costs as much as all else in a step.
        state = model.arrivals.count, self._times.num_observed // _RENEWED
        key = draft.model.name, model.name, turn.share
        kept = self._kept.get(key)
        if kept is None or kept[0] != state:
            asked = model.arrivals.first_tokens()
            own_s = self._times.of(model.name, turn.share).prompts_s(asked.num_tokens, step_s)
            found_s = longest_wait(_slacks(asked.ttft_s, own_s, draft.least_s, margin))
            kept = self._kept[key] = state, found_s
        return kept[1]
