"""A bidirectional cache in which nobody is in the batch class decides as any other."""

import numpy as np
import pytest

from muxcluster.core.job import Side, TableDelta
from muxcluster.kvcache.cache import KvCache, ModelCache
from muxcluster.kvcache.eviction import Pins
from tests.kvcache.oracle import BLOCK_BYTES, MODELS, Pair
from tests.kvcache.test_cache_random import Walk

QUOTAS = {"wide": 36, "narrow": 30, "uncached": 20}


class Doubles:
    """Two caches under the same calls; every answer, ids included, must be the same."""

    def __init__(
        self, plain: KvCache | ModelCache | Pins, shared: KvCache | ModelCache | Pins
    ) -> None:
        self._both = plain, shared

    def __getattr__(self, name: str):
        first, second = (getattr(cache, name) for cache in self._both)
        if isinstance(first, Pins):
            return Doubles(first, second)
        if not callable(first):
            assert np.array_equal(first, second), name
            return first

        def call(*arguments):
            answer, other = first(*arguments), second(*arguments)
            if isinstance(answer, ModelCache):
                return Doubles(answer, other)
            if isinstance(answer, TableDelta):
                for field in ("rows", "columns", "blocks"):
                    assert np.array_equal(getattr(answer, field), getattr(other, field))
            else:
                assert np.array_equal(answer, other), (name, answer, other)
            return answer

        return call


class LeftWalk(Walk):
    """No batch sequence is ever opened."""

    sides = (Side.LEFT,)


@pytest.mark.parametrize(("seed", "num_blocks"), [(6, 60), (7, 33)])
def test_interactive_sequences_alone_get_the_same_answers(seed: int, num_blocks: int) -> None:
    walk = LeftWalk(seed, num_blocks)
    shared = KvCache(
        num_blocks, BLOCK_BYTES, MODELS, QUOTAS, num_host_blocks=10, is_bidirectional=True
    )
    pair: Pair = walk.pair
    pair.cache = Doubles(pair.cache, shared)  # type: ignore[assignment]  # answers like one
    for _ in range(500):
        walk.step()
