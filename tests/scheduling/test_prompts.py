"""How much of a prompt a job takes: chunks of the batch class fill whole tiles."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.packing.batch import Draft, Limits
from muxcluster.scheduling.packing.rows import LEAST_CHUNK, TILE_TOKENS, Prompts, whole_tiles

BUDGET = 4096


class _Draft:
    """A job that has so many tokens, and time for so many more."""

    def __init__(self, within: int, num_decodes: int, *, is_batch: bool, prompt: int) -> None:
        rows = SimpleNamespace(
            num_computed=np.zeros(1, dtype=np.int32),
            num_tokens=np.full(1, prompt, dtype=np.int32),
            is_batch=np.array([is_batch]),
        )
        self.model = SimpleNamespace(running=rows)
        self.num_tokens, self.num_decodes = 0, num_decodes
        self._within = within
        self.taken: list[int] = []

    def tokens_within(self, limit_s: float, start: int, limit: int) -> int:
        return min(self._within, limit)

    def chunk(self, row: int, count: int, *, is_admitted: bool) -> None:
        self.taken.append(count)


def _taken(within: int, num_decodes: int = 0, *, is_batch: bool = True, **more: Any) -> int:
    draft = _Draft(within, num_decodes, is_batch=is_batch, prompt=more.pop("prompt", 10_000))
    prompts = Prompts(cast(Memory, None), Limits(BUDGET, 256, 1))
    prompts.chunk(cast(Draft, draft), 0, 1.0, **more)
    (count,) = draft.taken
    return count


@pytest.mark.parametrize("num_decodes", [0, 37, 200])
def test_a_batch_chunk_makes_the_job_whole_tiles(num_decodes: int) -> None:
    for within in range(1500, 1700):
        count = _taken(within, num_decodes)
        assert within - TILE_TOKENS < count <= within
        assert (count + num_decodes) % TILE_TOKENS == 0


def test_interactive_chunks_and_the_ends_of_prompts_are_taken_whole() -> None:
    assert _taken(1501, is_batch=False) == 1501
    assert _taken(3000, prompt=1501) == 1501


def test_what_fills_the_budget_or_must_be_taken_stays() -> None:
    assert _taken(10_000, 37) == BUDGET - 37
    assert _taken(1501, least=1501) == 1501


def test_small_jobs_are_left_alone() -> None:
    assert whole_tiles(1000, 0) == 1000
    assert whole_tiles(1024, 0) == 1024
    assert whole_tiles(1100, 0) == 1024
    # no more would be left than a chunk should have
    assert whole_tiles(LEAST_CHUNK + 16, 1000) == LEAST_CHUNK + 16
    assert whole_tiles(LEAST_CHUNK + 50, 1024 - 64) == LEAST_CHUNK
