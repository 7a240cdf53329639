"""Division of a unit's memory among the batch jobs of its models.

It is BlendServe's dual scan across models (not in the paper): one end is the job most bound by
compute, the other end the job most bound by memory.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from muxcluster.offline.feed.feeder import BatchFeeder, Room
from muxcluster.offline.feed.held_memory import WorkingSetForecast

_CHUNKS = 3  # of prompts that every job gets memory for: one is computed, two wait


class MemoryNeed(NamedTuple):
    """What one job asks of the unit's memory."""

    memory_s: float  # memory seconds of the job's requests that have not ended
    least_bytes: float  # with less its prompts would wait for memory


def divide_memory(needs: Sequence[MemoryNeed], size: float) -> list[float]:
    """Return the bytes of KV that each job gets, `size` in sum.

    Every step reads all that is held, so memory in proportion to the memory seconds left lets all
    jobs end together, and keeps the batch at the density of their union until then: two jobs of
    densities a and b and a union of density t get M_a + M_b = M, M_a · a + M_b · b = M · t, as
    `share_memory` solves it. Each job gets its `least_bytes` at least, scaled down if the memory
    does not suffice.
    """
    total = sum(need.least_bytes for need in needs)
    scale = min(1.0, size / total) if total else 1.0
    parts = [scale * need.least_bytes for need in needs]
    free = set(range(len(needs)))
    while free:
        left = size - sum(part for each, part in enumerate(parts) if each not in free)
        total_s = sum(needs[each].memory_s for each in free)
        even = {
            each: left * (needs[each].memory_s / total_s if total_s else 1 / len(free))
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
    """Divides a unit's memory among the jobs that run in it."""

    def __init__(self) -> None:
        self._forecast = WorkingSetForecast()

    def rooms(self, feeders: Mapping[str, BatchFeeder], room: Room) -> dict[str, Room]:
        """Return the room that each feeder may `take`, by the names in `feeders`, for now.

        room: of the batch requests of all models together. A job whose requests are all handed out
        keeps what it holds.
        """
        others = self._forecast.expect(room.now, room.other_bytes)
        size = max(0.0, room.size_bytes - others)
        parts = {model: float(each.open_bytes) for model, each in feeders.items()}
        waiting = [model for model, each in feeders.items() if len(each)]
        left = size - sum(part for model, part in parts.items() if model not in waiting)
        needs = [self._need(feeders[model], room.chunk_tokens) for model in waiting]
        parts.update(zip(waiting, divide_memory(needs, max(0.0, left)), strict=True))
        return {
            model: room._replace(size_bytes=part + others, other_bytes=others)
            for model, part in parts.items()
        }

    def _need(self, feeder: BatchFeeder, chunk_tokens: int) -> MemoryNeed:
        return MemoryNeed(feeder.memory_s_left, _CHUNKS * chunk_tokens * feeder.kv_bytes)
