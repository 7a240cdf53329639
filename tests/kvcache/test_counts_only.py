"""A cache that counts blocks without naming them decides exactly as the one that addresses them."""

import numpy as np
import pytest

from muxcluster.core.job import TableDelta
from muxcluster.kvcache.cache import KvCache, ModelCache
from muxcluster.kvcache.eviction import Pins
from tests.amounts import examples
from tests.kvcache.oracle import BLOCK_BYTES, MODELS, Pair
from tests.kvcache.test_cache_random import Walk

QUOTAS = {"wide": 36, "narrow": 30, "uncached": 20}


class Twins:
    """Two caches under the same calls; every answer must be the same but for table entries."""

    def __init__(
        self, addressed: KvCache | ModelCache | Pins, counted: KvCache | ModelCache | Pins
    ) -> None:
        self._both = addressed, counted

    def __getattr__(self, name: str):
        first, second = (getattr(cache, name) for cache in self._both)
        if isinstance(first, Pins):
            return Twins(first, second)
        if not callable(first):
            assert np.array_equal(first, second), name
            return first

        def call(*arguments, **options):
            answer, counted = first(*arguments, **options), second(*arguments, **options)
            if isinstance(answer, ModelCache):
                return Twins(answer, counted)
            if isinstance(answer, TableDelta):
                assert isinstance(counted, TableDelta)
                assert len(counted) == 0
            else:
                assert np.array_equal(answer, counted), (name, answer, counted)
            return answer

        return call


@pytest.mark.parametrize(("seed", "num_blocks"), [(3, 60), (4, 33), (5, 200)])
def test_random_operations_get_the_same_answers(seed: int, num_blocks: int) -> None:
    walk = Walk(seed, num_blocks)
    counted = KvCache(num_blocks, BLOCK_BYTES, MODELS, QUOTAS, has_block_ids=False)
    pair: Pair = walk.pair
    pair.cache = Twins(pair.cache, counted)  # type: ignore[assignment]  # answers like one
    for _ in range(examples(300, 700)):
        walk.step()
    for key in list(pair.oracle.sequences):
        pair.close(*key)
    pair.drop_cache()
    pair.check()
    assert pair.cache.free == num_blocks
