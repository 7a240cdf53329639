"""Load: start time of each request, and the number open at once."""

import asyncio
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from muxcluster.loadgen.answer import Answer, answer_of
from muxcluster.loadgen.exchange import Received, Target, exchange


@dataclass(frozen=True, slots=True)
class Pace:
    """Rate and concurrency of the requests."""

    rate_per_s: float = math.inf  # mean rate of arrivals, infinite for all at once
    # Shape of the gamma distribution of their gaps; 1 is a Poisson process, less is burstier
    burstiness: float = 1.0
    max_concurrency: int | None = None  # most requests open at a time, None for no limit
    timeout_s: float = 600.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a load."""

    answers: tuple[Answer, ...]
    queue_s: tuple[float, ...]  # seconds that each request waited because of `max_concurrency`
    duration_s: float
    client_cpu_s: float  # processor time of this process while the load ran, parsing not included


def arrivals_s(num_requests: int, pace: Pace) -> list[float]:
    """Start times from 0, with gamma-distributed gaps of mean 1 / rate (as vLLM draws them)."""
    if math.isinf(pace.rate_per_s):
        return [0.0] * num_requests
    rng = random.Random(pace.seed)
    scale = 1.0 / (pace.rate_per_s * pace.burstiness)
    times, now = [], 0.0
    for _ in range(num_requests):
        times.append(now)
        now += rng.gammavariate(pace.burstiness, scale)
    return times


async def run_load(target: Target, requests: Sequence[bytes], pace: Pace) -> Outcome:
    """Send every request and wait for all; failures are among the answers."""
    limit = pace.max_concurrency or max(1, len(requests))
    places = asyncio.Semaphore(limit)
    start_s, start_cpu_s = time.perf_counter(), time.process_time()

    async def one(request: bytes, arrival_s: float) -> tuple[Received, float]:
        await asyncio.sleep(max(0.0, start_s + arrival_s - time.perf_counter()))
        came_s = time.perf_counter()
        async with places:
            queue_s = time.perf_counter() - came_s
            return await exchange(target, request, pace.timeout_s), queue_s

    timed = zip(requests, arrivals_s(len(requests), pace), strict=True)
    results = await asyncio.gather(*(one(request, at_s) for request, at_s in timed))
    duration_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
    answers = tuple(answer_of(received) for received, _ in results)
    return Outcome(answers, tuple(queue_s for _, queue_s in results), duration_s, cpu_s)
