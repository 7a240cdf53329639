"""The rules of lending: who lends what, who takes it, who pays.

"wide" columns are 4 blocks of 16 places of 512 bytes, "odd" ones 3 blocks of 24 places of 320.
"""

import numpy as np

from muxcluster.core.job import Side
from muxcluster.kvcache.cache import KvCache
from muxcluster.kvcache.pool import Shortage
from tests.blocks import only_with
from tests.kvcache.memory_world import BLOCK_BYTES
from tests.kvcache.script import Script
from tests.kvcache.world import MODELS

pytestmark = only_with(16)

LEFT, RIGHT = Side.LEFT, Side.RIGHT


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def test_lending_copies_nothing_and_charges_nobody() -> None:
    script = Script(20)
    script.begin("wide", 0, RIGHT, 40)
    cache = script.cache
    assert (cache.of("wide").used, cache.of("wide").batch_used, cache.free) == (0, 12, 8)
    assert cache.of("wide").lending.lendable(0) == 12
    assert script.lend("wide", 0, 5) == 8
    assert (cache.lent, cache.of("wide").batch_used, cache.free) == (8, 4, 8)
    assert cache.of("wide").num_lent.tolist() == [2, 0, 0, 0, 0, 0]
    assert cache.of("wide").headroom() == 16
    assert cache.of("wide").headroom(RIGHT) == 8
    assert cache.of("wide").lending.restore_cost(0) == 0
    assert cache.of("wide").lending.untaken(0) == 8


def test_lending_ends_with_the_host_blocks() -> None:
    script = Script(20, num_host_blocks=5)
    script.begin("wide", 0, RIGHT, 40)
    assert script.cache.of("wide").lending.lendable(0) == 4
    assert script.lend("wide", 0, 12) == 4
    assert script.lend("wide", 0, 12) == 0
    script.close("wide", 0)
    script.begin("wide", 1, RIGHT, 40)
    assert script.cache.of("wide").lending.lendable(1) == 4


def test_columns_without_tokens_are_freed_at_once_and_need_no_host_block() -> None:
    script = Script(20, num_host_blocks=0)
    script.world.open("wide", 0, [], RIGHT)
    assert script.world.grow("wide", {0: 40})
    assert script.lend("wide", 0, 12) == 12
    assert (script.cache.free, script.cache.lent) == (20, 0)
    assert script.cache.of("wide").lending.restore_cost(0) == 12
    assert script.compute("wide", 0, 20)[0].restores.size == 0


def test_columns_without_tokens_are_lent_up_to_the_size_of_the_pool() -> None:
    script = Script(10)
    for row, lent in enumerate((8, 0)):
        script.world.open("wide", row, [], RIGHT)
        assert script.world.grow("wide", {row: 30})
        assert script.cache.of("wide").lending.lendable(row) == lent
        assert script.lend("wide", row, 8) == lent
    script.close("wide", 0)
    assert script.lend("wide", 1, 8) == 8


def test_lending_stops_at_a_column_that_somebody_else_reads() -> None:
    script = Script(40)
    script.begin("wide", 0, RIGHT, 48, path=(1, 2, 3))
    script.begin("wide", 1, RIGHT, 20, path=(1,))
    assert script.cache.of("wide").lending.lendable(0) == 8
    assert script.lend("wide", 0, 12) == 8
    assert script.cache.of("wide").num_committed[0] == 16
    script.close("wide", 1)
    assert script.lend("wide", 0, 12) == 4


def test_lent_columns_leave_the_prefix_cache_and_may_come_back() -> None:
    script = Script(40)
    script.begin("wide", 0, RIGHT, 48, path=(1, 2, 3))
    script.lend("wide", 0, 8)
    assert script.cache.of("wide").open(2, script.world.texts["wide", 0].hashes, RIGHT) == 16
    script.cache.of("wide").close(2)
    script.world._commit("wide", 0)
    assert script.cache.of("wide").num_committed[0] == 16
    script.compute("wide", 0, 1)
    assert script.cache.of("wide").num_committed[0] == 48
    script.close("wide", 0)
    assert script.cache.of("wide").num_cached == 12


def test_left_growth_takes_free_then_cached_then_lent_blocks() -> None:
    script = Script(24)
    script.begin("wide", 0, RIGHT, 32)
    script.begin("wide", 1, LEFT, 32, path=(1, 2))
    script.close("wide", 1)
    script.lend("wide", 0, 4)
    cache = script.cache
    assert (cache.free, cache.evictable, cache.lent) == (8, 8, 4)
    script.world.open("odd", 0, [], LEFT)
    assert script.world.grow("odd", {0: 48})
    assert (cache.evictable, cache.lent) == (8, 4)
    assert script.world.grow("odd", {0: 120})
    assert (cache.free, cache.evictable, cache.lent) == (1, 0, 4)
    script.world.open("wide", 1, [], LEFT)
    assert script.world.grow("wide", {1: 16})
    assert (cache.free, cache.lent, cache.of("wide").lending.restore_cost(0)) == (0, 1, 3)
    script.world.check()


def test_lent_blocks_are_taken_when_nothing_else_is_there() -> None:
    script = Script(8)
    script.begin("wide", 0, RIGHT, 32)
    script.lend("wide", 0, 8)
    script.world.open("odd", 0, [], LEFT)
    assert script.world.grow("odd", {0: 24})
    cache = script.cache
    assert (cache.lent, cache.of("odd").used, cache.of("wide").lending.restore_cost(0)) == (5, 3, 3)
    script.world.open("odd", 1, [], RIGHT)
    answer = cache.of("odd").grow(ints(1), ints(1))
    assert answer == Shortage(3, by_quota=False)


def test_a_quota_binds_the_left_side_only() -> None:
    script = Script(40)
    script.cache.set_quotas({"wide": 8})
    script.begin("wide", 0, RIGHT, 64)
    assert script.cache.of("wide").batch_used == 16
    script.world.open("wide", 1, [], LEFT)
    assert script.cache.of("wide").grow(ints(1), ints(48)) == Shortage(4, by_quota=True)
    assert script.cache.of("wide").headroom() == 8
    assert script.cache.of("wide").headroom(RIGHT) == 24


def test_nothing_is_lent_where_blocks_are_not_shared() -> None:
    cache = KvCache(20, BLOCK_BYTES, tuple(MODELS.values()), {"wide": 20})
    cache.of("wide").open(0, [], RIGHT)
    cache.of("wide").grow(ints(0), ints(40))
    assert (cache.of("wide").used, cache.of("wide").batch_used, cache.lent) == (12, 0, 0)
    assert cache.of("wide").lending.lendable(0) == cache.of("wide").lending.lend(0, 40, 4) == 0
    assert cache.of("wide").headroom(RIGHT) == cache.of("wide").headroom() == 8
    assert cache.of("wide").lending.saves(ints(0), ints(1), 1) == ()
    assert cache.of("wide").lending.blocked() is None
    assert cache.end_copies(1, True) == []
    assert not cache.of("wide").num_lent.any()


def test_a_lent_block_with_tokens_takes_a_host_block_until_it_is_back() -> None:
    script = Script(20, num_host_blocks=10)
    script.begin("wide", 0, RIGHT, 20)
    assert script.cache.free_host_blocks == 10
    script.lend("wide", 0, 8)
    assert script.cache.free_host_blocks == 2
    script.compute("wide", 0, 1)
    assert script.cache.free_host_blocks == 10
