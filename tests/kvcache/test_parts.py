"""The parts of the KV cache alone: pool, ledger, and checks that see planted faults."""

from collections.abc import Callable

import numpy as np
import pytest

from muxcluster.core.job import Side
from muxcluster.kvcache.pool import OWNER_BIT, BlockLedger, BlockPool, Shortage
from tests.blocks import only_with
from tests.kvcache.oracle import Pair

pytestmark = only_with(16)

LEFT, RIGHT = OWNER_BIT[Side.LEFT], OWNER_BIT[Side.RIGHT]


def bits(value: int, count: int) -> np.ndarray:
    return np.full(count, value, dtype=np.uint8)


def test_the_pool_hands_out_every_block_once() -> None:
    pool = BlockPool(10)
    first, second = pool.allocate(bits(LEFT, 4)), pool.allocate(bits(RIGHT, 6))
    assert sorted([*first.tolist(), *second.tolist()]) == list(range(10))
    assert pool.free == 0
    pool.release(second, bits(RIGHT, 6))
    pool.check()
    assert pool.free == 6


def test_a_block_is_free_when_both_sides_left() -> None:
    pool = BlockPool(4)
    ids = pool.allocate(bits(LEFT | RIGHT, 1))
    pool.release(ids, bits(RIGHT, 1))
    assert pool.free == 3
    pool.check()
    pool.release(ids, bits(LEFT, 1))
    assert pool.free == 4
    pool.check()


def test_a_side_cannot_release_what_it_does_not_own() -> None:
    pool = BlockPool(4)
    ids = pool.allocate(bits(LEFT, 2))
    with pytest.raises(AssertionError, match="lacks it"):
        pool.release(ids, bits(RIGHT, 2))
    pool.release(ids, bits(LEFT, 2))
    with pytest.raises(AssertionError, match="lacks it"):
        pool.release(ids, bits(LEFT, 2))


def test_the_ledger_tells_quota_from_pool() -> None:
    ledger = BlockLedger(10, {"a": 6, "b": 10})
    assert ledger.shortage("a", 6) is None
    assert ledger.shortage("a", 8) == Shortage(2, by_quota=True)
    ledger.take("b", 7)
    assert ledger.shortage("a", 5) == Shortage(2, by_quota=False)
    assert ledger.shortage("a", 7) == Shortage(4, by_quota=True)
    ledger.cache("b", 2)
    assert (ledger.headroom("a"), ledger.free, ledger.evictable) == (5, 3, 2)
    ledger.evict("b", 1)
    ledger.revive("b", 1)
    ledger.give("b", 2)
    assert (ledger.used("b"), ledger.cached("b"), ledger.free) == (4, 0, 6)
    ledger.check()


def _forget_reader(pair: Pair) -> None:
    pair.cache.of("wide")._kv.columns.refs[0] += 1


def _share_a_block(pair: Pair) -> None:
    blocks = pair.cache.of("wide")._kv.columns.blocks
    blocks[1, 0] = blocks[0, 0]


def _lose_a_block(pair: Pair) -> None:
    pair.cache._lent.pool._stack.take(1)


def _miscount(pair: Pair) -> None:
    pair.cache._ledger.take("wide", 1)


def _misplace(pair: Pair) -> None:
    pair.cache.of("wide")._kv.sequences.columns[0, 0] = 1


def _forget_cached(pair: Pair) -> None:
    pair.cache._cached.order.take(1, {"narrow": 1, "wide": 1})


def _unpublish(pair: Pair) -> None:
    prefix = pair.cache.of("wide")._kv.prefix
    prefix._published.clear()


def _forget_left_reader(pair: Pair) -> None:
    pair.cache.of("wide")._kv.columns.left_refs[0] -= 1


def _turn_a_column(pair: Pair) -> None:
    columns = pair.cache.of("wide")._kv.columns
    pair.cache._lent.pool.turn(columns.blocks[0], RIGHT)
    columns.owners[0] = RIGHT


def _forget_the_class(pair: Pair) -> None:
    pair.cache.of("wide")._kv.columns.was_left[:] = False


@pytest.mark.parametrize(
    "fault",
    [
        _forget_reader,
        _share_a_block,
        _lose_a_block,
        _miscount,
        _misplace,
        _forget_cached,
        _unpublish,
        _forget_left_reader,
        _turn_a_column,
        _forget_the_class,
    ],
)
def test_check_sees_a_planted_fault(fault: Callable[[Pair], None]) -> None:
    pair = Pair()
    for row, path in enumerate(((1, 2), (3, 4))):
        pair.open("wide", row, path, "", Side.LEFT)
        pair.grow("wide", {row: 32})
        pair.commit("wide", row, 2)
    pair.close("wide", 1)
    pair.check()
    fault(pair)
    with pytest.raises(AssertionError):
        pair.cache.check()
