"""Invariants of a unit's KV bookkeeping: owners, counts, lent columns and running copies."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from muxcluster.kvcache.eviction import EvictionOrder
from muxcluster.kvcache.lending.blocks import NO_BLOCK
from muxcluster.kvcache.lending.state import BOTH, LentState
from muxcluster.kvcache.model import ModelKv
from muxcluster.kvcache.pool import LEFT, OWNER_BIT, RIGHT


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


def check_counts(state: LentState, kinds: Sequence[ModelKv], order: EvictionOrder) -> None:
    """Raise AssertionError where the ledger, the cache and the eviction order disagree.

    kinds: of one model's layers.
    """
    name, ledger = kinds[0].model.name, state.ledger
    counts = [_counts(state, kv) for kv in kinds]
    used, held, cached = (sum(each) for each in zip(*counts, strict=True))
    assert used == ledger.used(name), f"{name}: used blocks are miscounted"
    assert held == ledger.batch_used(name), f"{name}: batch blocks are miscounted"
    assert cached == ledger.cached(name), f"{name}: cached blocks are miscounted"
    for kv in kinds:
        _check_order(kv, order)
        same = kv.sequences.num_columns == kinds[0].sequences.num_columns
        assert same.all(), f"{name}: layers of a sequence have columns for different lengths"
        same = kv.sequences.num_committed == kinds[0].sequences.num_committed
        assert same.all(), f"{name}: layers of a sequence have committed different lengths"


def _counts(state: LentState, kv: ModelKv) -> tuple[int, int, int]:
    """Return the used, the batch and the cached blocks of one kind of layers."""
    per_column, columns = kv.columns.blocks_per_column, kv.columns
    live, read = columns.owners != 0, columns.refs > 0
    is_lent = np.zeros(len(live), dtype=np.bool_)
    is_lent[lent_columns(kv)[0]] = True
    batch = read & ~is_lent & (columns.owners == RIGHT if state.is_on else np.zeros_like(live))
    used = int(np.count_nonzero(read & ~is_lent & ~batch))
    used += int((kv.sequences.num_columns - kv.sequences.num_named).sum())
    used = used * per_column + _num_orphans(state, kv, is_left=True)
    held = int(np.count_nonzero(batch)) * per_column + _num_orphans(state, kv, is_left=False)
    return used, held, int(np.count_nonzero(live & ~read)) * per_column


def _check_order(kv: ModelKv, order: EvictionOrder) -> None:
    name, columns = kv.name, kv.columns
    live, read = columns.owners != 0, columns.refs > 0
    published = set(kv.prefix.published().tolist())
    evictable = {column for kind, column in order if kind == name}
    unread = set(np.flatnonzero(live & ~read).tolist())
    assert evictable == unread, f"{name}: unread columns and the eviction order differ"
    first = {column for kind, column in order.batch_class if kind == name}
    assert not columns.was_left[list(first)].any(), f"{name}: an interactive prefix goes first"
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
    for kinds in state.kinds.values():
        check_counts(state, kinds, order)
    check_owners(state)
    if state.is_on:
        check_lending(state)


def lent_columns(kv: ModelKv) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the lent columns of a model but kept ones, and whose they are, int32 [n] each."""
    rows, _, columns = kv.lent_entries(np.flatnonzero(kv.lent.counts).astype(np.int32))
    return columns, rows


def check_lending(state: LentState) -> None:
    """Raise AssertionError naming the first broken invariant of lending, saving and restoring."""
    untaken = [_check_lent(state, kv) for kv in state.models]
    state.takeable.check()
    takeable = np.sort(np.concatenate(untaken))
    assert np.array_equal(takeable, state.takeable.ids), "takeable blocks are not the lent ones"
    assert len(takeable) == state.ledger.lent, "lent blocks are miscounted"
    _check_over_lent(state)
    _check_jobs(state)
    _check_host_blocks(state)


def _check_lent(state: LentState, kv: ModelKv) -> NDArray[np.int32]:
    """Check one model's lent columns; return their untaken blocks, int32 [n]."""
    columns, rows = lent_columns(kv)
    _check_lent_columns(state, kv, columns, rows)
    blocks = kv.columns.blocks[columns]
    entries, indices = (blocks != NO_BLOCK).nonzero()
    num_gone = (blocks == NO_BLOCK).sum(axis=1)
    blocks = blocks[entries, indices]
    _check_lenders(state, kv, blocks, columns[entries], indices)
    np.add.at(num_gone, entries, state.pool.owners[blocks] & LEFT != 0)
    costs = np.bincount(rows, weights=num_gone, minlength=len(kv.lent.costs))
    assert (costs == kv.lent.costs).all(), "restore costs are miscounted"
    return state.untaken(blocks)


def _check_lent_columns(
    state: LentState, kv: ModelKv, columns: NDArray[np.int32], rows: NDArray[np.int32]
) -> None:
    lent = kv.lent
    assert (kv.columns.refs[columns] == 1).all(), "a lent column has another reader"
    assert not np.isin(columns, kv.prefix.keyed()).any(), "a lent column is in the prefix cache"
    assert (lent.rows[columns] == rows).all(), "a lent column names another row"
    restores = (restore for restore in state.restores if restore.kv is kv)
    num_empty = sum(lent.count_empty(restore.columns) for restore in restores)
    num_empty += lent.count_empty(columns)
    assert lent.num_empty == num_empty, "empty lent columns are miscounted"
    assert lent.num_empty <= lent.most_empty, "too many empty lent columns"
    whole = np.maximum(kv.sequences.num_columns - lent.counts - kv.model.state_columns, 0)
    assert (kv.sequences.num_committed <= whole * kv.block_tokens).all(), "lent and committed"
    others = np.flatnonzero(kv.columns.owners)
    others = others[~np.isin(others, columns)]
    assert (kv.columns.blocks[others] != NO_BLOCK).all(), "a whole column lacks a block"


def _check_lenders(
    state: LentState,
    kv: ModelKv,
    blocks: NDArray[np.int32],
    columns: NDArray[np.int32],
    indices: NDArray[np.intp],
) -> None:
    """Check who lent `blocks`, each at an index of one of the lent `columns`, and what is saved."""
    lenders, cells = state.lenders, columns * kv.columns.blocks_per_column + indices
    assert (lenders.models[blocks] == state.index[kv.name]).all(), "a lender elsewhere"
    assert (lenders.cells[blocks] == cells).all(), "a lender in another column"
    for is_left in (False, True):
        is_ours = (kv.columns.owners[columns] == LEFT) == is_left
        ours = blocks[is_ours]
        first, end = kv.lent.places(columns[is_ours], kv.block_tokens, is_left=is_left)
        assert (lenders.is_left[ours] == is_left).all(), "a lender of another side"
        assert (lenders.ends[ours] == end).all(), "tokens lie elsewhere"
        assert (lenders.saved[ours] >= first).all(), "a watermark below the first token"
        assert (lenders.saved[ours] < end).all(), "a lender of nothing"


def _check_over_lent(state: LentState) -> None:
    """Every block with two owners lies under a listed column of a left sequence."""
    found = []
    for kv in state.models:
        listed = kv.over_lent
        held = kv.sequences.columns[listed.rows, listed.positions]
        assert (held == listed.columns).all(), "a column over lent blocks is not where it is listed"
        under = kv.columns.blocks[listed.columns]
        entries, indices = state.is_taken(under).nonzero()
        columns, blocks = listed.columns[entries], under[entries, indices]
        assert (kv.columns.refs[columns] == 1).all(), "a column over lent blocks has two readers"
        assert not np.isin(columns, kv.prefix.keyed()).any(), "a column over lent blocks is cached"
        for victim, ours in state.by_model(blocks):
            covered = listed.safe[entries[ours]].astype(np.int64) * kv.slot_bytes
            saved = state.lenders.saved[blocks[ours]].astype(np.int64) * victim.slot_bytes
            assert (covered <= saved).all(), "left tokens may pass the watermark unseen"
        found.append(blocks)
    taken = np.flatnonzero(state.pool.owners == BOTH)
    assert np.array_equal(np.sort(np.concatenate(found)), taken), "a taken block is not listed"


def _check_jobs(state: LentState) -> None:
    """Flags and counts of sequences and blocks are those of the running jobs."""
    saving = Counter(key for job in state.jobs.values() for key in job.saved)
    for kv in state.models:
        name, counts = kv.name, kv.lent.num_saving
        expected = {row: n for (model, row), n in saving.items() if model == name}
        assert {int(r): int(counts[r]) for r in np.flatnonzero(counts)} == expected, "saving"
        restoring = {row for each in state.restores if each.kv is kv for row in each.rows.tolist()}
        assert set(np.flatnonzero(kv.lent.is_restoring).tolist()) == restoring, "restoring"
    sources = np.concatenate([np.empty(0, np.int32), *(each.sources for each in state.restores)])
    expected_sources = np.flatnonzero(state.lenders.is_source)
    assert np.array_equal(np.sort(sources), expected_sources), "sources of restores differ"


def _check_host_blocks(state: LentState) -> None:
    """Each host block is free, dying, or held by one block of a lent or restoring column."""
    held = [kv.lent.host_blocks_of(lent_columns(kv)[0]) for kv in state.models]
    held += [each.kv.lent.host_blocks_of(each.columns) for each in state.restores]
    state.host_blocks.check(np.concatenate(held))
