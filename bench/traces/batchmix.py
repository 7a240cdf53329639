"""Batch jobs from a few parameters: requests of several kinds with different sharing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from muxcluster.workload.batchjob import BatchJob

VOCABULARY = 128_000
_SIGMA = float(np.sqrt(np.log(1.25)))  # Of lengths: a deviation of half their mean


@dataclass(frozen=True, slots=True)
class Kind:
    """Requests of one kind."""

    share: float  # of all requests
    degree: int  # requests that share a prefix
    # prefix, distinct, output: mean tokens
    prefix: int
    distinct: int
    output: int
    heading: int = 0  # tokens that every request of the kind begins with, before its prefix
    # of outputs; where it is given these deviate by their mean rather than by half of it, and what
    # is beyond is cut off
    most: int | None = None


def mixed_job(kinds: Sequence[Kind], num_requests: int, rng: np.random.Generator) -> BatchJob:
    """`num_requests` requests of these kinds in random order, their lengths log-normal."""
    parts = [part for kind in kinds for part in _requests(kind, num_requests, rng)]
    parts = [parts[i] for i in rng.permutation(len(parts))][:num_requests]
    offsets = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([len(prefix) + len(rest) for prefix, rest, _ in parts], out=offsets[1:])
    ids = np.concatenate([ids for prefix, rest, _ in parts for ids in (prefix, rest)])
    outputs = np.array([output for _, _, output in parts], dtype=np.int64)
    return BatchJob(ids, offsets, outputs, len(parts))


def _requests(
    kind: Kind, num_requests: int, rng: np.random.Generator
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32], int]]:
    """Prefix, rest and output tokens of each prompt of a kind, group by group."""
    num_groups = -(-round(kind.share * num_requests) // kind.degree)
    heading = _tokens(kind.heading, rng)
    if kind.most is not None:
        outputs = iter(long_outputs(kind.output, kind.most, num_groups * kind.degree, rng).tolist())
    for _ in range(num_groups):
        prefix = np.concatenate((heading, _tokens(_length(kind.prefix, rng), rng)))
        for _ in range(kind.degree):
            rest = _tokens(1 + _length(kind.distinct - 1, rng), rng)
            output = 1 + _length(kind.output - 1, rng) if kind.most is None else next(outputs)
            yield prefix, rest, output


def long_outputs(mean: int, most: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Outputs in random order, log-normal with a deviation of their mean, cut off at `most`.

    Evenly spaced quantiles: a few long requests are much of a job's work, and sums of a few random
    ones differ from job to job.
    """
    sigma = float(np.sqrt(np.log(2.0)))
    normal = NormalDist(-sigma * sigma / 2, sigma)
    ranks = (rng.permutation(count) + 0.5) / count
    lengths = mean * np.exp([normal.inv_cdf(rank) for rank in ranks.tolist()])
    return np.clip(np.round(lengths), 1, most).astype(np.int64)


def _length(mean: int, rng: np.random.Generator) -> int:
    return round(mean * rng.lognormal(-_SIGMA * _SIGMA / 2, _SIGMA))


def _tokens(length: int, rng: np.random.Generator) -> NDArray[np.int32]:
    return rng.integers(0, VOCABULARY, length, dtype=np.int32)
