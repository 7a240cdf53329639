"""How much co-running jobs slow one another."""

from collections.abc import Sequence

COLOCATION_LOSS = 0.1
"""Lost to a neighbour when the memory is busy all of the time."""


def slowdown(draws: Sequence[float]) -> float:
    """Factor ≥ 1 by which jobs that run at the same time are slower than each alone on its SMs.

    draws: share of the memory bandwidth that each takes, 0 to 1. Together they cannot draw more
    than all of it. Below that they still meet in the L2 cache and at the memory controllers, the
    more so the busier these are. Choi et al. (gpulet, USENIX ATC 2022) model what MPS partitions
    lose to that as linear in their use of L2 and bandwidth, and saw most pairs of models lose less
    than a fifth; half of that is assumed at full use. Greater draws never give a smaller factor; a
    job alone is not slowed.
    """
    if len(draws) < 2:
        return 1.0
    asked = sum(draws)
    return max(1.0, asked) * (1 + COLOCATION_LOSS * min(1.0, asked))
