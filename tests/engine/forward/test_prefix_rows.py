"""Rows of prefix groups side by side, in arrays of fixed size, and their results back in order."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.job import Rows, SharedPrefixes, TokenLogprobs
from muxcluster.engine.forward.batch import token_batch
from muxcluster.engine.forward.prefix_rows import (
    Reordered,
    fits,
    fixed_groups,
    group_arrays,
    most_groups,
    side_by_side,
)
from muxcluster.engine.sampling.results import Ready, RowsResult
from muxcluster.engine.steps.pieces import part

LEADERS = st.lists(st.sampled_from([None, None, 0, 1, 2]), min_size=1, max_size=14)
"""The group of each row, or none."""


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def rows_of(groups: list[int | None], counts: list[int] | None = None) -> Rows:
    """Table rows 100, 99, ...; a group's leader is its last row, its prefix 8 tokens or more."""
    table_rows = [100 - row for row in range(len(groups))]
    last = dict(zip(groups, table_rows, strict=True))
    return Rows(
        ints(table_rows),
        ints([500 + row for row in range(len(groups))]),
        ints([1] * len(groups) if counts is None else counts),
        np.array([row % 3 != 1 for row in range(len(groups))]),
        SharedPrefixes(
            ints([s if g is None else last[g] for g, s in zip(groups, table_rows, strict=True)]),
            ints([0 if g is None else 8 * (g + 1) for g in groups]),
        ),
    )


def spans(offsets: np.ndarray, lengths: np.ndarray) -> list[tuple[int, int, int]]:
    ends = offsets.tolist()
    return [(*span, n) for *span, n in zip(ends[:-1], ends[1:], lengths.tolist(), strict=True)]


@given(LEADERS)
def test_groups_are_side_by_side_and_cover_all_rows(groups: list[int | None]) -> None:
    rows = rows_of(groups)
    ordered, order = side_by_side(rows)
    assert order is not None and ordered.prefixes is not None
    assert sorted(order.tolist()) == list(range(len(groups)))
    assert ordered.table_rows.tolist() == [100 - row for row in order.tolist()]
    assert ordered.starts.tolist() == [500 + row for row in order.tolist()]
    seen: list[int | None] = []
    for first, last, tokens in spans(*group_arrays(ordered.prefixes)):
        members = [groups[row] for row in order[first:last].tolist()]
        assert len(set(members)) == 1 and tokens == (
            0 if members[0] is None else 8 * members[0] + 8
        )
        assert members[0] not in seen
        seen += members[:1]
    assert len(seen) == len(set(groups))


@given(LEADERS, st.integers(0, 9))
def test_arrays_of_fixed_size_say_the_same(groups: list[int | None], more: int) -> None:
    prefixes = side_by_side(rows_of(groups))[0].prefixes
    assert prefixes is not None
    size = len(groups) + more
    offsets, lengths = fixed_groups(prefixes, size)
    assert offsets.shape == (most_groups(size) + 1,) and lengths.shape == (most_groups(size),)
    assert offsets[0] == 0 and offsets[-1] == size and (np.diff(offsets) >= 0).all()
    own = spans(*group_arrays(prefixes))
    is_sharing = fits(prefixes, size)
    assert is_sharing == (len(own) < most_groups(size))
    found = [span for span in spans(offsets, lengths) if span[2]]
    assert found == ([span for span in own if span[2]] if is_sharing else [])
    assert not fits(None, size) and not fixed_groups(None, size)[1].any()


@given(LEADERS)
def test_results_come_back_by_the_rows_of_the_job(groups: list[int | None]) -> None:
    rows = rows_of(groups)
    ordered, order = side_by_side(rows)
    assert order is not None
    sampling = np.flatnonzero(ordered.samples)
    steps = np.stack([ordered.table_rows[sampling], ordered.table_rows[sampling] + 1000])
    entry = {
        row: (TokenLogprobs(int(ordered.table_rows[row]), 0.0, 1),) for row in range(len(groups))
    }
    done = Reordered(
        Ready(RowsResult(steps, entry, entry, ordered.table_rows[sampling] % 3 == 0)),
        order,
        ordered.samples,
    )
    assert done.is_done
    result = done.result()
    expected = rows.table_rows[rows.samples]
    assert result.tokens.tolist() == [expected.tolist(), (expected + 1000).tolist()]
    assert result.is_broken.tolist() == (expected % 3 == 0).tolist()
    for entries in (result.logprobs, result.prompt_logprobs):
        assert {row: each[0].token for row, each in entries.items()} == dict(
            enumerate(rows.table_rows.tolist())
        )


def test_nothing_shared_leaves_rows_alone() -> None:
    rows = Rows(ints([3, 4]), ints([0, 1]), ints([1, 1]), np.ones(2, bool))
    assert side_by_side(rows) == (rows, None)
    batch = token_batch(rows.table_rows, rows.starts, rows.counts, torch.device("cpu"))
    assert batch.single is not None
    assert batch.single.groups is None


@pytest.mark.parametrize("counts", [[1] * 6, [1, 5, 1, 1, 2, 1]])
def test_a_batch_groups_its_rows_of_one_token(counts: list[int]) -> None:
    groups = [0 if count == 1 else None for count in counts]
    rows, _ = side_by_side(rows_of(groups, counts))
    assert rows.prefixes is not None
    cpu = torch.device("cpu")
    batch = token_batch(rows.table_rows, rows.starts, rows.counts, cpu, rows.prefixes)
    assert batch.single is not None
    groups = batch.single.groups
    assert groups is not None
    assert groups.offsets.tolist() == [0, counts.count(1)]
    assert groups.prefix_lengths.tolist() == [8]
    assert groups.offsets.dtype == groups.prefix_lengths.dtype == torch.int64


def test_a_piece_keeps_its_part_of_a_group() -> None:
    rows, _ = side_by_side(rows_of([0, 0, 0, 1, 1, None]))
    first, second = part(rows, slice(0, 3)), part(rows, slice(3, 6))
    assert first.prefixes is not None and second.prefixes is not None
    assert spans(*group_arrays(first.prefixes)) == [(0, 1, 0), (1, 3, 16)]
    assert spans(*group_arrays(second.prefixes)) == [(0, 3, 8)]
