"""Columns of states: taken with a sequence's first tokens, moved with it, freed with it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.core.job import Side, TableDelta
from muxcluster.core.kvshape import KvShape
from muxcluster.kvcache.cache import KvCache
from muxcluster.kvcache.model import KvModel
from muxcluster.kvcache.pool import Shortage
from tests.amounts import examples, slow
from tests.kvcache.memory_world import BLOCK, BLOCK_BYTES
from tests.kvcache.test_counts_only import Twins
from tests.kvcache.walk import LendingWalk
from tests.kvcache.world import World

ONE = KvModel(
    "wide",
    KvShape(2, 2, 128, 4),
    max_seqs=6,
    max_model_len=6 * BLOCK,
    prefix_caching=False,
    state_columns=1,
)
TWO = KvModel(
    "odd",
    KvShape(3, 1, 80, 4),
    max_seqs=6,
    max_model_len=15 * BLOCK // 2,
    prefix_caching=False,
    state_columns=2,
)
PLAIN = KvModel("odd", KvShape(3, 1, 80, 4), max_seqs=6, max_model_len=15 * BLOCK // 2)
QUOTAS = {"wide": 40, "odd": 40}
NUM_OPERATIONS = 600  # under each of the conditions

# seed, blocks of the pool, host blocks, lazy saving, the other model
CONDITIONS = [
    (0, 40, 32, True, PLAIN),
    (1, 48, 60, True, TWO),
    *slow((2, 36, 48, True, TWO), (3, 60, 24, True, PLAIN), (4, 44, 40, False, TWO)),
]


@pytest.mark.parametrize(("seed", "num_blocks", "num_host_blocks", "lazily", "other"), CONDITIONS)
def test_no_state_is_lost(
    seed: int, num_blocks: int, num_host_blocks: int, lazily: bool, other: KvModel
) -> None:
    """As the walk of models without states: lending, copies, failures, preemption."""
    models = {"wide": ONE, "odd": other}
    world = World.build(
        seed, num_blocks, num_host_blocks, QUOTAS, saves_lazily=lazily, models=models
    )
    walk = LendingWalk(world)
    for _ in range(NUM_OPERATIONS):
        walk.step()
    assert min(walk.seen[kind] for kind in ("saves", "failed")) > 0
    for side in ("LEFT", "RIGHT"):
        assert walk.seen[f"{side} lent"] > 0
        assert walk.seen[f"{side} restores"] + walk.seen[f"{side} moves"] > 0
    world.reset()
    world.check()
    assert world.cache.free == num_blocks


def rows_of(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def test_states_come_with_the_first_token_and_go_with_the_last() -> None:
    cache = KvCache(30, BLOCK_BYTES, (TWO,), {})
    kv, width = cache.of("odd"), TWO.shape.block_tokens(BLOCK_BYTES)
    assert kv.open(0, ()) == 0
    assert (kv.used, kv.capacity[0]) == (0, 0)
    grown = kv.grow(rows_of(0), rows_of(1))
    assert isinstance(grown, TableDelta)
    assert grown.columns.tolist() == [0, 1, 2]
    assert (kv.used, kv.capacity[0]) == (3 * 3, width)
    grown = kv.grow(rows_of(0), rows_of(width + 1))
    assert isinstance(grown, TableDelta)
    assert grown.columns.tolist() == [3]
    assert kv.tables(rows_of(0)).columns.tolist() == [0, 1, 2, 3]
    assert kv.mean_column(width) == 3 * (1 + 2)
    kv.open(1, ())
    lacking = kv.grow(rows_of(1), rows_of(TWO.max_model_len))
    assert isinstance(lacking, Shortage)
    assert lacking.blocks == (5 + 2) * 3 - (30 - 12)
    kv.close(0)
    kv.close(1)
    cache.check()
    assert cache.free == 30


@given(data=st.data())
@settings(max_examples=examples(15, 400))
def test_counts_alone_decide_alike(data: st.DataObject) -> None:
    num_blocks = data.draw(st.integers(9, 60))
    caches = [
        KvCache(num_blocks, BLOCK_BYTES, (TWO,), {"odd": 40}, has_block_ids=has_ids)
        for has_ids in (True, False)
    ]
    kv = Twins(*(cache.of("odd") for cache in caches))
    lengths: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 25))):
        row = data.draw(st.integers(0, 3))
        if row not in lengths:
            lengths[row] = kv.open(row, (), Side.LEFT)
        elif data.draw(st.booleans()):
            end = data.draw(st.integers(lengths[row], TWO.max_model_len))
            kv.lack(rows_of(row), rows_of(end))
            if isinstance(kv.grow(rows_of(row), rows_of(end)), TableDelta):
                lengths[row] = end
        else:
            kv.close(row)
            del lengths[row]
        for cache in caches:
            cache.check()


def test_states_beside_windows_or_a_prefix_cache_are_refused() -> None:
    for more in ({"prefix_caching": True}, {"window": 5, "window_layers": (0,)}):
        fields = {"prefix_caching": False, "state_columns": 1, **more}
        model = KvModel("m", KvShape(2, 1, 64, 4), 2, 99, **fields)
        with pytest.raises(ValueError, match="m keeps states"):
            model.kinds()
