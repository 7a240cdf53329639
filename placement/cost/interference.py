"""How much co-running jobs slow one another."""

from collections.abc import Sequence

COLOCATION_LOSS = 0.03
"""Lost by each job that has a neighbour: shared L2 and launch queues."""


def slowdown(draws: Sequence[float]) -> float:
    """Factor ≥ 1 by which jobs that run at the same time are slower than each alone on its SMs.

    draws: share of the memory bandwidth that each takes. Together they cannot draw more than all
    of it; a job alone is not slowed.
    """
    if len(draws) < 2:
        return 1.0
    return max(1.0, sum(draws)) * (1 + COLOCATION_LOSS)
