"""The parts of block lending alone: host blocks, lent blocks, runs of copies, the ledger."""

import numpy as np
import pytest

from muxcluster.kvcache.lending.blocks import ColumnsOverLent, HostBlocks, TakeableBlocks, runs
from muxcluster.kvcache.pool import BlockLedger, Shortage


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def test_a_touched_host_block_is_free_when_its_job_has_ended() -> None:
    host_blocks = HostBlocks(4)
    first, second = host_blocks.take(2), host_blocks.take(2)
    host_blocks.touch(first)
    host_blocks.give(np.concatenate((first, second)))
    assert host_blocks.free == 2
    assert set(host_blocks.dying.tolist()) == set(first.tolist())
    host_blocks.check(ids())
    host_blocks.settle(first)
    assert host_blocks.free == 4
    host_blocks.check(ids())


def test_host_blocks_see_a_leak() -> None:
    host_blocks = HostBlocks(4)
    held = host_blocks.take(2)
    with pytest.raises(AssertionError, match="leaked"):
        host_blocks.check(held[:1])
    with pytest.raises(AssertionError, match="leaked"):
        host_blocks.check(np.repeat(held, 2)[:3])


def test_the_emptiest_blocks_are_taken_first() -> None:
    lent = TakeableBlocks(10)
    lent.add(ids(1, 2, 3, 4, 5), ids(0, 3, 7, 0, 3))
    assert lent.take(4).tolist() == [3, 5, 2, 4]
    lent.check()
    assert len(lent) == 1


def test_a_block_that_left_and_came_back_is_there_once() -> None:
    lent = TakeableBlocks(10)
    for tier in (0, 6, 0, 0, 6):
        lent.add(ids(5), ids(tier))
        lent.check()
        assert lent.ids.tolist() == [5]
        lent.remove(ids(5))
    lent.add(ids(7, 5), ids(6, 0))
    assert sorted(lent.take(2).tolist()) == [5, 7]
    assert len(lent) == 0
    lent.check()


def test_lent_blocks_agree_with_a_set() -> None:
    draw = np.random.default_rng(0)
    lent, expected = TakeableBlocks(50), set()
    for _ in range(2000):
        kind, count = draw.integers(3), int(draw.integers(6))
        inside, outside = sorted(expected), sorted(set(range(50)) - expected)
        if kind == 0:
            new = draw.permutation(outside)[:count].astype(np.int32)
            lent.add(new, draw.integers(8, size=len(new)))
            expected |= set(new.tolist())
        elif kind == 1:
            gone = draw.permutation(inside)[:count].astype(np.int32)
            lent.remove(gone)
            expected -= set(gone.tolist())
        elif count <= len(expected) and count:
            taken = set(lent.take(count).tolist())
            assert len(taken) == count
            assert taken <= expected
            expected -= taken
        lent.check()
        assert set(lent.ids.tolist()) == expected


def test_runs_leave_out_what_is_empty() -> None:
    answer = runs(ids(2, 3, 4), ids(7, 8, 9), 16, ids(0, 5, 5), ids(3, 5, 16))
    assert answer.tolist() == [[32, 112, 3], [69, 149, 11]]
    assert answer.dtype == np.int64


def test_shared_columns_are_due_when_more_tokens_come_than_are_safe() -> None:
    shared = ColumnsOverLent(8, block_tokens=16)
    shared.add(ids(3, 3, 5), ids(1, 2, 0), ids(10, 11, 12))
    due, held = shared.due(ids(3, 4), ids(20, 50))
    assert (due.tolist(), held.tolist()) == ([0], [4])
    shared.narrow(due, ids(7))
    assert len(shared.due(ids(3), ids(23))[0]) == 0
    due, held = shared.due(ids(5, 3), ids(9, 40))
    assert (due.tolist(), held.tolist()) == ([0, 1, 2], [16, 8, 9])
    shared.narrow(due, ids(16, 8, 16))
    assert (shared.rows.tolist(), shared.columns.tolist()) == ([3], [11])


def test_the_ledger_keeps_the_classes_apart() -> None:
    ledger = BlockLedger(20, {"a": 6, "b": 20})
    ledger.take("b", 15, is_batch=True)
    assert (ledger.headroom("a"), ledger.headroom("a", is_batch=True)) == (5, 5)
    ledger.lend("b", 9)
    assert (ledger.headroom("a"), ledger.headroom("a", is_batch=True)) == (6, 5)
    assert ledger.shortage("a", 8) == Shortage(2, by_quota=True)
    assert ledger.shortage("a", 8, batch=8) == Shortage(3, by_quota=False)
    assert ledger.shortage("a", 10, batch=5) is None
    ledger.free_lent(4)
    ledger.lend("b", -5)
    assert (ledger.free, ledger.lent, ledger.batch_used("b")) == (9, 0, 11)
    ledger.check()
