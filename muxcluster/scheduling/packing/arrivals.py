"""How long a job may take before interactive requests that come meanwhile miss their targets."""

import math

import numpy as np
from numpy.typing import NDArray

from muxcluster.scheduling.packing.batch import Draft, Turn
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.steptime.model import StepTimes

_LATE = 0.01  # of requests that come at a random moment of the job: targets are met by 99 %
_RENEWED = 8  # jobs learnt from after which a bound is found again


def longest_wait(slacks_s: NDArray[np.float64], least_s: float = 0.0) -> float:
    """Return the longest job amid which requests may come with at most 1 in 100 too late.

    slacks_s: [n] seconds that each could wait. They are equally likely, as are the moments of the
    job: one with slack s is late in a job of t seconds with probability max(0, 1 - s / t). Those
    that could not wait for a job of `least_s` do not count; inf where no other is left.
    """
    slacks_s = np.sort(slacks_s[slacks_s > least_s])
    count = len(slacks_s)
    if count == 0:
        return math.inf
    # With k slacks below t, k - sum / t of them are late: t is where that is 1 % of all.
    late = np.arange(1, count + 1) - _LATE * count
    is_bound = late > 0
    candidates = slacks_s.cumsum()[is_bound] / late[is_bound]
    following = np.append(slacks_s[1:], np.inf)[is_bound]
    return float(candidates[(candidates <= following).argmax()])


class ArrivalBounds:
    """What interactive requests that are not here yet leave for a job, by what came of late."""

    def __init__(self, times: StepTimes) -> None:
        self._times = times
        self._kept: dict[tuple[str, str, float], tuple[tuple[int, int], float]] = {}

    def due_s(
        self, model: ModelState, draft: Draft, turn: Turn, step_s: float, margin: float
    ) -> float:
        """Return the seconds until a job must end for the next requests of `model`; inf: none come.

        step_s: a step of the rows that decode beside their prompts; margin: see `StepTimes`.
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
            found_s = longest_wait(asked.ttft_s - margin * own_s, margin * draft.least_s)
            kept = self._kept[key] = state, found_s
        return kept[1]
