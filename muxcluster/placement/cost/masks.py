"""Seconds of masks, the tokens that constraints of outputs allow next: computed beside the forward.

One process a unit computes them (`muxcluster/constraints`), one row after the other.
"""

# Of one row: 12.3 ms of processor time for the 64 rows of a step, small schemas, 128,000 tokens
# (bench/constrained.py, `processor_ms_a_step`).
MASK_ROW_S = 1.9e-4


def masks_s(rows: float, constrained_share: float) -> float:
    """Return the seconds of the masks of a step: a forward that takes less waits for them.

    constrained_share: part of the rows that have a constraint.
    """
    return rows * constrained_share * MASK_ROW_S
