"""Invariants of lent columns, shared blocks, watermarks, frames and running copies."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from muxcluster.kvcache.lending.columns import NO_BLOCK
from muxcluster.kvcache.lending.state import BOTH, LEFT, RIGHT, Sharing
from muxcluster.kvcache.model_kv import ModelKv


def lent_columns(kv: ModelKv) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
    """The lent columns of all slots of a model but kept ones, and whose they are, [n] each."""
    table, counts = kv.sequences, kv.lent.counts
    slots = np.flatnonzero(counts)
    tails = [
        table.columns[slot, table.num_columns[slot] - counts[slot] : table.num_columns[slot]]
        for slot in slots
    ]
    columns = np.concatenate(tails) if tails else np.empty(0, dtype=np.int32)
    is_lent = ~kv.lent.is_kept[columns]
    return columns[is_lent], slots.repeat(counts[slots])[is_lent]


def check_sharing(sharing: Sharing) -> None:
    """Raise AssertionError naming the first broken invariant of lending, saving and restoring."""
    untaken = [_check_lent(sharing, kv) for kv in sharing.models]
    sharing.lent.check()
    lent = np.sort(np.concatenate(untaken))
    assert np.array_equal(lent, sharing.lent.ids), "takeable blocks are not the lent ones"
    assert len(lent) == sharing.ledger.lent, "lent blocks are miscounted"
    _check_shared(sharing)
    _check_jobs(sharing)
    _check_frames(sharing)


def _check_lent(sharing: Sharing, kv: ModelKv) -> NDArray[np.int32]:
    """Check one model's lent columns; their blocks that no left sequence took, int32 [n]."""
    lent, rights, per_column = kv.lent, sharing.rights, kv.columns.blocks_per_column
    columns, slots = lent_columns(kv)
    assert (kv.columns.refs[columns] == 1).all(), "a lent column has another reader"
    assert not np.isin(columns, kv.prefix.keyed()).any(), "a lent column is in the prefix cache"
    assert (lent.slots[columns] == slots).all(), "a lent column names another slot"
    restores = (each for job in sharing.jobs for each in job.restores if each.kv is kv)
    num_empty = sum(lent.count_empty(each.columns) for each in restores)
    num_empty += lent.count_empty(columns)
    assert lent.num_empty == num_empty, "empty lent columns are miscounted"
    assert lent.num_empty <= lent.most_empty, "too many empty lent columns"
    whole = kv.sequences.num_columns - lent.counts
    assert (kv.sequences.num_committed <= whole * kv.block_tokens).all(), "lent and committed"
    others = np.flatnonzero(kv.columns.owners)
    others = others[~np.isin(others, columns)]
    assert (kv.columns.blocks[others] != NO_BLOCK).all(), "a whole column lacks a block"
    rows = kv.columns.blocks[columns]
    entries, indices = (rows != NO_BLOCK).nonzero()
    blocks, theirs = rows[entries, indices], columns[entries]
    assert (rights.models[blocks] == sharing.index[kv.model.name]).all(), "another right model"
    assert (rights.cells[blocks] == theirs * per_column + indices).all(), "another right column"
    for is_left in (False, True):
        ours = (kv.columns.owners[theirs] == LEFT) == is_left
        first, end = lent.places(theirs[ours], kv.block_tokens, is_left=is_left)
        assert (rights.is_left[blocks[ours]] == is_left).all(), "a lender of another side"
        assert (rights.ends[blocks[ours]] == end).all(), "tokens lie elsewhere"
        assert (rights.saved[blocks[ours]] >= first).all(), "a watermark below the first token"
        assert (rights.saved[blocks[ours]] < end).all(), "a right owner of nothing"
    taken = (rows == NO_BLOCK).sum(axis=1)
    np.add.at(taken, entries, sharing.pool.owners[blocks] & LEFT != 0)
    costs = np.bincount(slots, weights=taken, minlength=len(lent.costs))
    assert (costs == lent.costs).all(), "restore costs are miscounted"
    untaken: NDArray[np.int32] = blocks[sharing.pool.owners[blocks] == RIGHT]
    return untaken


def _check_shared(sharing: Sharing) -> None:
    """Every block with two owners lies under a listed column of a left sequence."""
    owners, rights, found = sharing.pool.owners, sharing.rights, []
    for kv in sharing.models:
        shared = kv.shared
        held = kv.sequences.columns[shared.slots, shared.positions]
        assert (held == shared.columns).all(), "a shared column is not where the list says"
        rows = kv.columns.blocks[shared.columns]
        entries, indices = (owners[rows] == BOTH).nonzero()
        columns, blocks = shared.columns[entries], rows[entries, indices]
        assert (kv.columns.refs[columns] == 1).all(), "a shared column has another reader"
        assert not np.isin(columns, kv.prefix.keyed()).any(), "a shared column is cached"
        for victim, ours in sharing.by_model(blocks):
            covered = shared.safe[entries[ours]].astype(np.int64) * kv.slot_bytes
            saved = rights.saved[blocks[ours]].astype(np.int64) * victim.slot_bytes
            assert (covered <= saved).all(), "left tokens may pass the watermark unseen"
        found.append(blocks)
    both = np.sort(np.concatenate(found))
    assert np.array_equal(both, np.flatnonzero(owners == BOTH)), "a shared block is not listed"


def _check_jobs(sharing: Sharing) -> None:
    """Flags and counts of slots and blocks are those of the running jobs."""
    saving = Counter(key for job in sharing.jobs for key in job.saved)
    restores = [restore for job in sharing.jobs for restore in job.restores]
    for kv in sharing.models:
        name, counts = kv.model.name, kv.lent.num_saving
        expected = {slot: n for (model, slot), n in saving.items() if model == name}
        assert {int(s): int(counts[s]) for s in np.flatnonzero(counts)} == expected, "saving"
        restoring = {slot for each in restores if each.kv is kv for slot in each.slots.tolist()}
        assert set(np.flatnonzero(kv.lent.is_restoring).tolist()) == restoring, "restoring"
    sources = np.concatenate([np.empty(0, np.int32), *(each.sources for each in restores)])
    expected_sources = np.flatnonzero(sharing.rights.is_source)
    assert np.array_equal(np.sort(sources), expected_sources), "sources of restores differ"


def _check_frames(sharing: Sharing) -> None:
    """Each host frame is free, dying, or held by one block of a lent or restoring column."""
    held = [kv.lent.frames_of(lent_columns(kv)[0]) for kv in sharing.models]
    restores = (restore for job in sharing.jobs for restore in job.restores)
    held += [restore.kv.lent.frames_of(restore.columns) for restore in restores]
    sharing.frames.check(np.concatenate(held))
