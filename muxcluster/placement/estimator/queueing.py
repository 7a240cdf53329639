"""Waiting times and their quantiles: the little queueing theory that the estimates need."""

import math
from dataclasses import dataclass
from statistics import NormalDist

from muxcluster.placement.problem import LENGTH_CV2

FULLEST = 0.98  # highest assumed load of a queue: waits grow without bound towards 1
_HIGH = 0.95
_NORMAL = NormalDist()
_Z = _NORMAL.inv_cdf(_HIGH)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Median and 95th percentile over requests, seconds."""

    median: float
    high: float

    def times(self, factor: float) -> "Quantiles":
        """Return those of times that are longer by a factor."""
        return Quantiles(self.median * factor, self.high * factor)


@dataclass(frozen=True, slots=True)
class Part:
    """Mean and variance of a part of a time; parts that are added are independent."""

    mean: float
    variance: float = 0.0

    def __add__(self, other: "Part") -> "Part":
        return Part(self.mean + other.mean, self.variance + other.variance)

    def quantiles(self) -> Quantiles:
        """Return those of the log-normal distribution with this mean and variance."""
        if self.mean <= 0:
            return Quantiles(0.0, 0.0)
        spread = math.log1p(self.variance / self.mean**2)
        median = self.mean * math.exp(-spread / 2)
        return Quantiles(median, median * math.exp(_Z * math.sqrt(spread)))


def rest_of(mean_s: float, variance: float, cubes: float = 0.0, busy: float = 1.0) -> Part:
    """Return what is left of an interval when somebody comes at random (Kleinrock vol. 1, §5.2).

    cubes: third moment of the parts of the interval that are rare and long. busy: probability that
    an interval is under way.
    """
    if mean_s <= 0:
        return Part(0.0)
    rest = (mean_s + variance / mean_s) / 2
    square = (mean_s**2 + 3 * variance + cubes / mean_s) / 3
    return Part(busy * rest, max(0.0, busy * square - (busy * rest) ** 2))


def queue_wait(load: float, service_s: float) -> Part:
    """Return the wait in an M/G/1 queue whose service times scatter as lengths do
    (Pollaczek-Khinchine); its tail is taken as exponential.

    service_s: mean, above 0.
    """
    load = min(FULLEST, load)
    if load <= 0:
        return Part(0.0)
    mean = load * service_s * (1 + LENGTH_CV2) / (2 * (1 - load))
    return Part(mean, mean**2 * (2 / load - 1))


def places_wait(taken: float, variance: float, places: float, free_per_s: float) -> Quantiles:
    """Return the wait for one of so many places: rows, or room for KV.

    The probability of a wait is that of Halfin and Whitt (1981), whose places are above the mean
    by so many standard deviations; it lasts an exponential time, as in an M/M/c queue.
    taken, variance: of the places in use. free_per_s: by how much the queue gets shorter while all
    are taken, above 0.
    """
    spare = (places - taken) / math.sqrt(max(variance, 1e-12))
    if spare <= 0:
        waits = 1.0
    elif spare > 6:
        return Quantiles(0.0, 0.0)
    else:
        density = math.exp(-spare * spare / 2) / math.sqrt(2 * math.pi)
        waits = 1 / (1 + spare * _NORMAL.cdf(spare) / density)
    return Quantiles(*(max(0.0, math.log(waits / tail)) / free_per_s for tail in (0.5, 1 - _HIGH)))


@dataclass(frozen=True, slots=True)
class Flow:
    """One model at the rate that its unit serves."""

    rate: float  # requests/s
    rows: float  # rows, variance: sequences in decode
    variance: float
    full_rate: float  # requests/s that it would serve with all rows taken
    gap: Part  # seconds between two tokens, as the mean over a request
    first: Part  # seconds to the first token from when it has a row
