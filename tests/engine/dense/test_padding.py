"""Properties of the padded batch's bookkeeping: who is where, and how long the batch grows."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.engine.dense.padding import Padding

LENGTHS = st.lists(st.integers(1, 12), max_size=3)
TURNS = st.lists(st.tuples(LENGTHS, st.lists(st.booleans(), min_size=20, max_size=20)), max_size=25)
"""Of each turn: prompts that come in, and who of the rows then leaves."""


@dataclass(slots=True)
class Row:
    """What a batch that looks at no mask knows of a row; widened: columns that prompts of others
    added beside it beyond the one of a step."""

    length: int
    widened: int = 0


def ones(padding: Padding) -> np.ndarray:
    return np.ones(padding.num_rows, dtype=np.int64)


def without(padding: Padding, rows: list[Row], leaves: list[bool]) -> tuple[Padding, list[Row]]:
    stays = [i for i in range(len(rows)) if not leaves[i % len(leaves)]]
    kept, columns = padding.selected(stays)
    assert np.array_equal(kept.mask, padding.mask[np.ix_(stays, columns)])
    return kept, [rows[i] for i in stays]


def check(padding: Padding, rows: list[Row]) -> None:
    padding.check()
    assert padding.lengths.tolist() == [row.length for row in rows]
    for mask, positions in zip(padding.mask, padding.positions, strict=True):
        assert positions[mask].tolist() == list(range(mask.sum()))


@given(TURNS)
def test_embedding_keeps_the_batch_as_long_as_its_longest_row(
    turns: list[tuple[list[int], list[bool]]],
) -> None:
    padding, rows = Padding.none(), list[Row]()
    for lengths, leaves in turns:
        longest = max([row.length for row in rows] + lengths, default=0)
        padding = padding.embedded(lengths)
        rows += [Row(length) for length in lengths]
        assert padding.length == longest
        if rows:
            padding = padding.appended(ones(padding))
            for row in rows:
                row.length += 1
            assert padding.length == longest + 1
        padding, rows = without(padding, rows, leaves)
        check(padding, rows)
        assert padding.length == max((row.length for row in rows), default=0)


@given(TURNS)
def test_shaping_adds_what_was_inserted_in_the_oldest_rows_life(
    turns: list[tuple[list[int], list[bool]]],
) -> None:
    padding, rows = Padding.none(), list[Row]()
    for lengths, leaves in turns:
        if not rows and not lengths:
            continue
        padding = padding.appended(ones(padding), lengths)
        for row in rows:
            row.length += 1
            row.widened += sum(length - 1 for length in lengths)
        rows += [Row(length) for length in lengths]
        padding, rows = without(padding, rows, leaves)
        check(padding, rows)
        if rows:
            oldest = max(row.widened for row in rows)
            assert padding.length <= max(row.length for row in rows) + oldest


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), LENGTHS)
def test_rows_are_aligned_at_their_ends(lengths: list[int], later: list[int]) -> None:
    """Both cases of §4.2: rows that are shorter than the batch, and rows that are longer."""
    padding = Padding.of(lengths).embedded(later)
    length = max(lengths + later)
    for mask, own in zip(padding.mask, lengths + later, strict=True):
        assert mask.tolist() == [False] * (length - own) + [True] * own


def test_a_hole_does_not_move_positions() -> None:
    shaped = Padding.of([2]).appended(np.array([1]), [3])
    assert shaped.mask.tolist() == [[1, 1, 0, 0, 1], [0, 0, 1, 1, 1]]
    assert shaped.positions.tolist() == [[0, 1, 1, 1, 2], [0, 0, 0, 1, 2]]


def test_the_hole_of_a_row_goes_with_who_filled_it() -> None:
    shaped = Padding.of([2]).appended(np.array([1]), [3])
    kept, columns = shaped.selected([0])
    assert columns.tolist() == [0, 1, 4]
    assert kept.mask.all()
