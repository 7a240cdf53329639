"""Transformations of streams: cut in time, speed up, shorten, assign to models."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from muxcluster.workload.arrival import Arrival
from muxcluster.workload.popularity import shares
from muxcluster.workload.seeds import rng_for

_BLOCK = 4096


def between(arrivals: Iterable[Arrival], start_s: float, end_s: float) -> Iterator[Arrival]:
    """Yield arrivals in [start_s, end_s), with `start_s` as the new time 0."""
    for arrival in arrivals:
        if arrival.time_s >= end_s:
            return
        if arrival.time_s >= start_s:
            yield replace(arrival, time_s=arrival.time_s - start_s)


def sped_up(arrivals: Iterable[Arrival], factor: float) -> Iterator[Arrival]:
    """Raise the rate by `factor`: divide times by it. Raises ValueError unless it is above 0."""
    if not 0 < factor < np.inf:
        raise ValueError(f"expected a factor above 0, found {factor}")
    return (replace(arrival, time_s=arrival.time_s / factor) for arrival in arrivals)


def shortened(
    arrivals: Iterable[Arrival], divisor: float, most_prompt: int, most_output: int
) -> Iterator[Arrival]:
    """Divide lengths, round, and cut them to the limits; at least 1 token.

    Shared blocks shrink by the same divisor, rounded up, so that about the same share of a prompt
    is shared. Raises ValueError for a divisor below 1 or a limit below 1.
    """
    if not 1 <= divisor < np.inf or min(most_prompt, most_output) < 1:
        raise ValueError("needs a divisor from 1 up and limits from 1 up")

    def short(arrival: Arrival) -> Arrival:
        prompt = min(max(round(arrival.prompt_tokens / divisor), 1), most_prompt)
        output = min(max(round(arrival.output_tokens / divisor), 1), most_output)
        prefix = arrival.prefix
        if prefix is not None:
            size = math.ceil(prefix.block_tokens / divisor)
            num_blocks = -(-prompt // size)
            prefix = replace(prefix, block_ids=prefix.block_ids[:num_blocks], block_tokens=size)
        return replace(arrival, prompt_tokens=prompt, output_tokens=output, prefix=prefix)

    return map(short, arrivals)


def assigned(
    arrivals: Iterable[Arrival], rates: Mapping[str, float], seed: int
) -> Iterator[Arrival]:
    """Assign each request to a model drawn in proportion to `rates`; ids and times stay."""
    names, parts = list(rates), shares(list(rates.values()))
    return _assigned(arrivals, names, parts.cumsum(), rng_for(seed, "assigned"))


def _assigned(
    arrivals: Iterable[Arrival],
    names: list[str],
    sums: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    rng: np.random.Generator,
) -> Iterator[Arrival]:
    chosen: list[int] = []
    for arrival in arrivals:
        if not chosen:
            places = np.searchsorted(sums[:-1], rng.random(_BLOCK), side="right")
            chosen = places.tolist()
        yield replace(arrival, model=names[chosen.pop()])
