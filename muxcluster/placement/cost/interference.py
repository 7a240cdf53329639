"""Slowdown of jobs that run at the same time."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

# Assumed loss to a neighbour at fully used memory bandwidth, if it was not measured.
COLOCATION_LOSS = 0.1


def slowdown(draws: Sequence[float], loss: float = COLOCATION_LOSS) -> float:
    """Factor ≥ 1 by which jobs that run at the same time are slower than each alone on its SMs.

    draws: share of the memory bandwidth that each takes, 0 to 1. Together they cannot draw more
    than all of it. Below that they still meet in the L2 cache and at the memory controllers, the
    more so the busier these are. Choi et al. (gpulet, USENIX ATC 2022) model what MPS partitions
    lose to that as linear in their use of L2 and bandwidth, and saw most pairs of models lose less
    than a fifth; half of that is assumed at full use. Greater draws never give a smaller factor; a
    job alone is not slowed. loss: at full use, from 0 up; see `fitted_loss`.
    """
    if len(draws) < 2:
        return 1.0
    asked = sum(draws)
    return max(1.0, asked) * (1 + loss * min(1.0, asked))


class Slowed(NamedTuple):
    """A measured pair of jobs."""

    draws: tuple[float, float]  # bandwidth shares of its jobs, each alone
    factor: float  # slowdown side by side, the geometric mean of both ratios


def fitted_loss(pairs: Sequence[Slowed]) -> float:
    """Return the loss for which `slowdown` is right for the median pair, at least 0.

    Pairs that draw no bandwidth are ignored; without others the assumed loss is returned.
    """
    told = [(sum(pair.draws), pair.factor) for pair in pairs if sum(pair.draws) > 0]
    if not told:
        return COLOCATION_LOSS
    losses = ((factor / max(1.0, asked) - 1) / min(1.0, asked) for asked, factor in told)
    return max(0.0, median(losses))
