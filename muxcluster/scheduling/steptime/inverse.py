"""How much prompt fits in a job that must end in time."""

from collections.abc import Callable
from math import sqrt

from muxcluster.scheduling.steptime.line import Line
from muxcluster.scheduling.steptime.work import JobWork


def prefill_within(line: Line, seconds: float, work: JobWork, start: int) -> float:
    """How many prompt tokens from position `start` on may join those of `work`.

    The greatest root of the line's parabola in the number of tokens; infinite where nothing grows.
    """
    left_s = seconds - line.base_s
    left_s -= line.per_token_s * work.num_tokens + line.per_attended_s * work.attention
    if seconds < line.floor_s or left_s < 0:
        return 0.0
    slope = line.per_token_s + line.per_attended_s * start
    if slope <= 0 and line.per_attended_s <= 0:
        return float("inf")
    root = sqrt(slope * slope + 2 * line.per_attended_s * left_s)
    return 2 * left_s / (slope + root) if slope + root > 0 else float("inf")


def tokens_within(job_s: Callable[[int], float], seconds: float, near: float, limit: int) -> int:
    """The greatest count up to `limit` with job_s(count) ≤ seconds, 0 for none.

    job_s never falls. near: the answer but for rounding.
    """
    count = int(min(max(near, 0.0), limit))
    while count > 0 and job_s(count) > seconds:
        count -= 1
    while count < limit and job_s(count + 1) <= seconds:
        count += 1
    return count
