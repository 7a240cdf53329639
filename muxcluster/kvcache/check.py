"""Invariants of a unit's KV bookkeeping as a whole."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.kvcache.eviction import EvictionOrder
from muxcluster.kvcache.lending.check import check_lending, lent_columns
from muxcluster.kvcache.lending.columns import NO_BLOCK
from muxcluster.kvcache.lending.state import RIGHT, LentState
from muxcluster.kvcache.model_kv import ModelKv
from muxcluster.kvcache.pool import OWNER_BIT


def check_owners(state: LentState) -> None:
    """Raise AssertionError where blocks and the columns that hold them disagree."""
    pool = state.pool
    owners = np.zeros(pool.num_blocks, dtype=np.uint8)
    for kv in state.models:
        live = np.flatnonzero(kv.columns.owners)
        blocks = kv.columns.blocks[live].ravel()
        sides = kv.columns.owners.copy()
        sides[lent_columns(kv)[0]] = RIGHT
        bits = np.repeat(sides[live], kv.columns.num_ids)
        for bit in OWNER_BIT.values():
            _claim(owners, blocks[(bits == bit) & (blocks != NO_BLOCK)], bit)
    for restore in state.restores:
        _claim(owners, restore.sources, RIGHT)
    assert (owners == pool.owners).all(), "blocks leaked: the pool has other owners"
    if pool.num_blocks:
        assert pool.free == state.ledger.free, "free list and ledger differ"


def _claim(owners: NDArray[np.uint8], blocks: NDArray[np.int32], bit: int) -> None:
    assert len(np.unique(blocks)) == len(blocks), "a block is owned twice on a side"
    assert not (owners[blocks] & bit).any(), "two models own a block on the same side"
    owners[blocks] |= bit


def check_counts(state: LentState, kv: ModelKv, order: EvictionOrder) -> None:
    """Raise AssertionError where the ledger, the cache and the eviction order disagree."""
    name, per_column, columns = kv.model.name, kv.columns.blocks_per_column, kv.columns
    live, read = columns.owners != 0, columns.refs > 0
    is_lent = np.zeros(len(live), dtype=np.bool_)
    is_lent[lent_columns(kv)[0]] = True
    batch = read & ~is_lent & (columns.owners == RIGHT if state.is_on else np.zeros_like(live))
    used = np.count_nonzero(read & ~is_lent & ~batch)
    used += int((kv.sequences.num_columns - kv.sequences.num_named).sum())
    used = used * per_column + _num_orphans(state, kv, is_left=True)
    assert used == state.ledger.used(name), f"{name}: used blocks are miscounted"
    held = np.count_nonzero(batch) * per_column + _num_orphans(state, kv, is_left=False)
    assert held == state.ledger.batch_used(name), f"{name}: batch blocks are miscounted"
    cached = np.count_nonzero(live & ~read) * per_column
    assert cached == state.ledger.cached(name), f"{name}: cached blocks are miscounted"
    published = {int(c) for bit in OWNER_BIT.values() for c in kv.prefix.published(bit)}
    evictable = {column for model, column in order if model == name}
    unread = set(np.flatnonzero(live & ~read).tolist())
    assert evictable == unread, f"{name}: unread columns and the eviction order differ"
    assert unread <= published, f"{name}: a cached column cannot be found"


def _num_orphans(state: LentState, kv: ModelKv, *, is_left: bool) -> int:
    """Count blocks that running jobs restore from and no left sequence holds, of one side."""
    restores = (each for each in state.restores if each.kv is kv and each.is_left is is_left)
    return sum(len(state.untaken(each.sources)) for each in restores)


def check_cache(state: LentState, order: EvictionOrder) -> None:
    """Raise AssertionError naming the first broken invariant of a unit's cache."""
    state.pool.check()
    state.ledger.check()
    for kv in state.models:
        kv.check()
        check_counts(state, kv, order)
    check_owners(state)
    if state.is_on:
        check_lending(state)
