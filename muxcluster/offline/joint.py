"""Batch jobs of several models in one unit: how its memory is divided among them.

BlendServe's dual scan across models, which the paper does not do: one end is the job most bound by
compute, the other the one most bound by memory.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from muxcluster.offline.feed.feeder import BatchFeeder, Room
from muxcluster.offline.feed.forecast import WorkingSetForecast

_CHUNKS = 3
"""Prompts that no job is denied memory for: one chunk of them is computed, two more wait."""


class Want(NamedTuple):
    """memory_s: memory seconds of a job's requests that have not ended. least_bytes: with less its
    prompts would wait for memory."""

    memory_s: float
    least_bytes: float


def divide_memory(wants: Sequence[Want], size: float) -> list[float]:
    """Of `size` bytes of KV, those of each job; in sum `size`.

    What is held is what every step reads, so memory in proportion to the memory seconds left lets
    all jobs end together, and keeps the batch at the density of their union until then: two jobs of
    densities a and b and a union of density t get M_a + M_b = M, M_a * a + M_b * b = M * t, as
    `share_memory` solves it. Who would get less than he needs at least gets that, if there is as
    much.
    """
    needed = sum(want.least_bytes for want in wants)
    scale = min(1.0, size / needed) if needed else 1.0
    parts = [scale * want.least_bytes for want in wants]
    free = set(range(len(wants)))
    while free:
        left = size - sum(part for each, part in enumerate(parts) if each not in free)
        total_s = sum(wants[each].memory_s for each in free)
        even = {
            each: left * (wants[each].memory_s / total_s if total_s else 1 / len(free))
            for each in free
        }
        short = {each for each in free if even[each] < parts[each]}
        if not short:
            for each, part in even.items():
                parts[each] = part
            break
        free -= short
    return parts


class JointMemory:
    """Divides a unit's memory among the jobs of its models, anew whenever it is asked."""

    def __init__(self, feeders: Mapping[str, BatchFeeder]) -> None:
        """feeders: by model, all of one unit."""
        self._feeders = feeders
        self._forecast = WorkingSetForecast()

    def rooms(self, room: Room) -> dict[str, Room]:
        """What each feeder may `take`, by model.

        room: of the batch requests of all models together. A job of which everything is handed out
        keeps what it holds.
        """
        others = self._forecast.expect(room.now, room.other_bytes)
        size = max(0.0, room.size_bytes - others)
        parts = {model: float(each.open_bytes) for model, each in self._feeders.items()}
        waiting = [model for model, each in self._feeders.items() if len(each)]
        left = size - sum(part for model, part in parts.items() if model not in waiting)
        wants = [self._want(self._feeders[model], room.chunk_tokens) for model in waiting]
        parts.update(zip(waiting, divide_memory(wants, max(0.0, left)), strict=True))
        return {
            model: room._replace(size_bytes=part + others, other_bytes=others)
            for model, part in parts.items()
        }

    def _want(self, feeder: BatchFeeder, chunk_tokens: int) -> Want:
        return Want(feeder.memory_s_left, _CHUNKS * chunk_tokens * feeder.kv_bytes)
