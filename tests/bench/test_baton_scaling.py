"""BATON's batch outside a unit: who leaves it, and who comes in."""

from hypothesis import given
from hypothesis import strategies as st

from bench.rebatching.scaling import BatonScaling
from muxcluster.core.padded import RowBytes

QUERIES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=15)
"""Prompt and output tokens of each."""


def test_the_last_leave_first_and_no_more_than_needed() -> None:
    scaling = BatonScaling(RowBytes(0, 10), limit_bytes=400, max_rows=8)
    assert scaling.leaving({1: 9, 2: 4, 3: 4, 4: 4}) == []
    assert scaling.leaving({1: 10, 2: 4, 3: 4, 4: 4}) == [4]
    assert scaling.leaving({1: 4, 2: 4, 3: 19, 4: 4}) == [3, 4]
    assert scaling.leaving({1: 1000, 2: 1}) == [2]


def test_a_longer_query_counts_for_every_row() -> None:
    """End-aligned, all rows become as long as the longest."""
    scaling = BatonScaling(RowBytes(0, 10), limit_bytes=400, max_rows=8, room=1.0)
    assert scaling.entering({1: 9, 2: 9}, {3: 9, 4: 9, 5: 9}) == [3, 4]
    assert scaling.entering({1: 9, 2: 9}, {3: 20, 4: 1}) == []
    assert scaling.entering({}, {3: 1000, 4: 1}) == [3]


def test_rows_are_limited_and_states_of_fixed_size_count() -> None:
    assert BatonScaling(RowBytes(0, 1), 10**9, max_rows=2).entering({1: 5}, {2: 5, 3: 5}) == [2]
    assert BatonScaling(RowBytes(100, 0), 350, 9, room=1.0).entering(
        {1: 900}, {2: 1, 3: 1, 4: 1}
    ) == [
        2,
        3,
    ]


@given(QUERIES, st.integers(1, 120), st.integers(1, 6), st.floats(0.5, 1))
def test_every_query_ends_within_the_limit(
    asked: list[tuple[int, int]], limit: int, max_rows: int, room: float
) -> None:
    """Also where single queries are larger than the limit: those run alone."""
    scaling = BatonScaling(RowBytes(1, 1), limit, max_rows, room=room)
    waiting = {query: length for query, (length, _) in enumerate(asked)}
    ends = {query: length + output for query, (length, output) in enumerate(asked)}
    rows: dict[int, int] = {}
    num_steps = 0
    while rows or waiting:
        saved = {query: rows.pop(query) for query in scaling.leaving(rows)}
        waiting = saved | waiting
        if not saved:
            for query in scaling.entering(rows, waiting):
                rows[query] = waiting.pop(query)
        rows = {query: length + 1 for query, length in rows.items()}
        num_steps += 1
        assert len(rows) <= max_rows
        assert len(rows) == 1 or scaling.row_bytes.of(len(rows), max(rows.values())) <= limit
        rows = {query: length for query, length in rows.items() if length < ends[query]}
    assert num_steps <= sum(output for _, output in asked)
