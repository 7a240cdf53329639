"""Groups of sequences that read the same columns first, against all partitions of them."""

from collections.abc import Iterator, Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.core.job import SharedPrefixes
from muxcluster.kvcache.prefix import PrefixGroups
from muxcluster.kvcache.tables import ColumnStore, SequenceTable

BLOCK = 8
Path = tuple[int, ...]
PATHS = st.lists(st.lists(st.integers(0, 2), max_size=6).map(tuple), min_size=1, max_size=7)
"""What sequences have computed, as ways down a tree: those that begin alike share columns."""


def held(paths: Sequence[Path], least: int) -> tuple[PrefixGroups, SequenceTable, np.ndarray]:
    """Sequences in shuffled rows with a column for each node of their path."""
    columns = ColumnStore(200, 2)
    sequences = SequenceTable(16, 20 * BLOCK, BLOCK)
    nodes: dict[Path, int] = {}
    rows = np.random.default_rng(len(paths)).permutation(16)[: len(paths)].astype(np.int32)
    for row, path in zip(rows.tolist(), paths, strict=True):
        ids = []
        for depth in range(1, len(path) + 1):
            if path[:depth] in nodes:
                columns.attach(np.array([nodes[path[:depth]]]), 1)
            else:
                one = np.ones(1, dtype=np.uint8)
                nodes[path[:depth]] = int(columns.add(np.zeros((1, 2), np.int32), one)[0])
            ids.append(nodes[path[:depth]])
        sequences.open(row, 1, np.array(ids, dtype=np.int32))
    return PrefixGroups(columns, sequences, least * BLOCK), sequences, rows


def common(paths: Sequence[Path]) -> int:
    """Columns that all of them share."""
    depth = 0
    while all(len(path) > depth for path in paths) and len({p[: depth + 1] for p in paths}) == 1:
        depth += 1
    return depth


def partitions(places: list[int]) -> Iterator[list[list[int]]]:
    if not places:
        yield []
        return
    first, rest = places[0], places[1:]
    for parts in partitions(rest):
        yield [[first], *parts]
        for i in range(len(parts)):
            yield [*parts[:i], [first, *parts[i]], *parts[i + 1 :]]


def most_saved(paths: Sequence[Path], least: int) -> int:
    """The best that one level of groups can do."""
    return max(
        sum((len(part) - 1) * depth for part, depth in parts if depth >= least)
        for parts in (
            [(part, common([paths[place] for place in part])) for part in parts]
            for parts in partitions(list(range(len(paths))))
        )
    )


def nested_saved(paths: Sequence[Path], least: int) -> int:
    """The best where a sequence stays with all that share its next longer prefix, by definition."""
    if len(paths) < 2:
        return 0
    depth = common(paths)
    families: dict[int, list[Path]] = {}
    for path in paths:
        if len(path) > depth:
            families.setdefault(path[depth], []).append(path)
    whole = (len(paths) - 1) * depth if depth >= least else 0
    return max(whole, sum(nested_saved(family, least) for family in families.values()))


def check_groups(found: SharedPrefixes, paths: Sequence[Path], rows: np.ndarray) -> None:
    place_of = {row: place for place, row in enumerate(rows.tolist())}
    for place, (leader, tokens) in enumerate(zip(found.leaders, found.tokens, strict=True)):
        if not tokens:
            assert leader == rows[place]
            continue
        depth = tokens // BLOCK
        assert tokens % BLOCK == 0 and found.tokens[place_of[leader]] == tokens
        assert len(paths[place]) >= depth
        assert paths[place][:depth] == paths[place_of[leader]][:depth]
    sizes = np.unique(found.leaders[found.tokens > 0], return_counts=True)[1]
    assert sizes.min() >= 2, "a group of one"


@settings(max_examples=300, deadline=None)
@given(PATHS, st.integers(1, 3))
def test_groups_share_what_they_say_and_save_the_most_that_nesting_allows(
    paths: list[Path], least: int
) -> None:
    groups, _, rows = held(paths, least)
    found, best = groups.of(rows), most_saved(paths, least)
    assert (found is None) == (best == 0)
    if found is None:
        return
    check_groups(found, paths, rows)
    assert found.num_saved == BLOCK * nested_saved(paths, least) <= BLOCK * best


def test_families_that_share_nothing_with_each_other_are_grouped_best() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        families = [(family,) * int(rng.integers(2, 6)) for family in range(3)]
        paths = [families[i] + (9, int(i)) for i in rng.integers(0, 3, 7)]
        paths = [(*path[:-1], 10 + place) for place, path in enumerate(paths)]
        groups, _, rows = held(paths, 2)
        found = groups.of(rows)
        assert found is not None
        assert found.num_saved == BLOCK * most_saved(paths, 2)


def test_a_group_dissolves_when_its_members_end_and_forms_again() -> None:
    groups, sequences, rows = held([(0, 0), (0, 0, 1), (1, 1)], 2)
    first = groups.of(rows)
    assert first is not None and first.tokens.tolist() == [16, 16, 0]
    assert groups.of(rows) is first, "the same question is answered twice"
    assert groups.of(rows[1:]) is None
    columns, _ = sequences.close(int(rows[0]))
    groups._columns.detach(columns, 1)
    assert groups.of(rows[1:]) is None
    groups._columns.attach(columns, 1)
    sequences.open(int(rows[0]), 1, columns)
    again = groups.of(rows)
    assert again is not None and again.tokens.tolist() == [16, 16, 0]


def test_what_is_not_committed_is_not_shared() -> None:
    """A row's table keeps what an earlier sequence had; only computed columns count."""
    groups, sequences, rows = held([(0, 0, 0), (0, 0, 0)], 2)
    sequences.truncate(int(rows[1]), 1)
    assert groups.of(rows) is None
    sequences.put_back(int(rows[1]), sequences.columns[rows[0], 1:3].copy())
    assert groups.of(rows) is None, "put back, but not computed"
    sequences.advance(int(rows[1]), 2)
    found = groups.of(rows)
    assert found is not None and found.tokens.tolist() == [24, 24]


def test_zero_turns_it_off() -> None:
    groups, _, rows = held([(0,) * 6] * 3, 0)
    assert groups.of(rows) is None


def test_a_staircase_of_prefixes_needs_no_deep_recursion() -> None:
    """Each shares one column more with the next: the levels that are compared are bounded."""
    places = 800
    columns, sequences = ColumnStore(2 * places, 2), SequenceTable(places, places * BLOCK, BLOCK)
    chain = columns.add(np.zeros((places, 2), np.int32), np.ones(places, np.uint8))
    columns.refs[chain] = places
    for row in range(places):
        sequences.open(row, 1, chain[: row + 1])
    rows = np.arange(places, dtype=np.int32)
    found = PrefixGroups(columns, sequences, 2 * BLOCK).of(rows)
    assert found is not None and found.num_saved > 0
