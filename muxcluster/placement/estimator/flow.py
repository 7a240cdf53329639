"""Steady state of one model on a unit."""

from dataclasses import dataclass

from muxcluster.placement.estimator.queueing import Part


@dataclass(frozen=True, slots=True)
class Flow:
    """One model at the rate that its unit serves."""

    rate: float  # requests/s
    rows: float  # rows, variance: sequences in decode
    variance: float
    full_rate: float  # requests/s that it would serve with all rows taken
    gap: Part  # seconds between two tokens, as the mean over a request
    first: Part  # seconds to the first token from when it has a row
