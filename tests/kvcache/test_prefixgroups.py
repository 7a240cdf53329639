"""Groups of sequences that read the same columns first, against all partitions of the rows."""

from collections.abc import Iterator, Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.core.job import SharedPrefixes
from muxcluster.kvcache.columns import ColumnStore
from muxcluster.kvcache.prefix_groups import PrefixGroups
from muxcluster.kvcache.sequences import SequenceTable

BLOCK = 8
Path = tuple[int, ...]
PATHS = st.lists(st.lists(st.integers(0, 2), max_size=6).map(tuple), min_size=1, max_size=7)
"""What sequences have computed, as ways down a tree: those that begin alike share columns."""


def held(paths: Sequence[Path], least: int) -> tuple[PrefixGroups, SequenceTable, np.ndarray]:
    """Sequences in shuffled slots with a column for each node of their path."""
    columns = ColumnStore(200, 2)
    sequences = SequenceTable(16, 20 * BLOCK, BLOCK)
    nodes: dict[Path, int] = {}
    slots = np.random.default_rng(len(paths)).permutation(16)[: len(paths)].astype(np.int32)
    for slot, path in zip(slots.tolist(), paths, strict=True):
        ids = []
        for depth in range(1, len(path) + 1):
            if path[:depth] in nodes:
                columns.attach(np.array([nodes[path[:depth]]]))
            else:
                one = np.ones(1, dtype=np.uint8)
                nodes[path[:depth]] = int(columns.add(np.zeros((1, 2), np.int32), one)[0])
            ids.append(nodes[path[:depth]])
        sequences.open(slot, 1, np.array(ids, dtype=np.int32))
    return PrefixGroups(columns, sequences, least * BLOCK), sequences, slots


def common(paths: Sequence[Path]) -> int:
    """Columns that all of them share."""
    depth = 0
    while all(len(path) > depth for path in paths) and len({p[: depth + 1] for p in paths}) == 1:
        depth += 1
    return depth


def partitions(rows: list[int]) -> Iterator[list[list[int]]]:
    if not rows:
        yield []
        return
    first, rest = rows[0], rows[1:]
    for parts in partitions(rest):
        yield [[first], *parts]
        for i in range(len(parts)):
            yield [*parts[:i], [first, *parts[i]], *parts[i + 1 :]]


def most_saved(paths: Sequence[Path], least: int) -> int:
    """The best that one level of groups can do."""
    return max(
        sum((len(part) - 1) * depth for part, depth in parts if depth >= least)
        for parts in (
            [(part, common([paths[row] for row in part])) for part in parts]
            for parts in partitions(list(range(len(paths))))
        )
    )


def nested_saved(paths: Sequence[Path], least: int) -> int:
    """The best where a row stays with all that share its next longer prefix, by definition."""
    if len(paths) < 2:
        return 0
    depth = common(paths)
    families: dict[int, list[Path]] = {}
    for path in paths:
        if len(path) > depth:
            families.setdefault(path[depth], []).append(path)
    whole = (len(paths) - 1) * depth if depth >= least else 0
    return max(whole, sum(nested_saved(family, least) for family in families.values()))


def check_groups(found: SharedPrefixes, paths: Sequence[Path], slots: np.ndarray) -> None:
    row_of = {slot: row for row, slot in enumerate(slots.tolist())}
    for row, (leader, tokens) in enumerate(zip(found.leaders, found.tokens, strict=True)):
        if not tokens:
            assert leader == slots[row]
            continue
        depth = tokens // BLOCK
        assert tokens % BLOCK == 0 and found.tokens[row_of[leader]] == tokens
        assert len(paths[row]) >= depth
        assert paths[row][:depth] == paths[row_of[leader]][:depth]
    sizes = np.unique(found.leaders[found.tokens > 0], return_counts=True)[1]
    assert sizes.min() >= 2, "a group of one"


@settings(max_examples=300, deadline=None)
@given(PATHS, st.integers(1, 3))
def test_groups_share_what_they_say_and_save_the_most_that_nesting_allows(
    paths: list[Path], least: int
) -> None:
    groups, _, slots = held(paths, least)
    found, best = groups.of(slots), most_saved(paths, least)
    assert (found is None) == (best == 0)
    if found is None:
        return
    check_groups(found, paths, slots)
    assert found.num_saved == BLOCK * nested_saved(paths, least) <= BLOCK * best


def test_families_that_share_nothing_with_each_other_are_grouped_best() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        families = [(family,) * int(rng.integers(2, 6)) for family in range(3)]
        paths = [families[i] + (9, int(i)) for i in rng.integers(0, 3, 7)]
        paths = [(*path[:-1], 10 + row) for row, path in enumerate(paths)]
        groups, _, slots = held(paths, 2)
        found = groups.of(slots)
        assert found is not None
        assert found.num_saved == BLOCK * most_saved(paths, 2)


def test_a_group_dissolves_when_its_members_end_and_forms_again() -> None:
    groups, sequences, slots = held([(0, 0), (0, 0, 1), (1, 1)], 2)
    first = groups.of(slots)
    assert first is not None and first.tokens.tolist() == [16, 16, 0]
    assert groups.of(slots) is first, "the same question is answered twice"
    assert groups.of(slots[1:]) is None
    columns, _ = sequences.close(int(slots[0]))
    groups._columns.detach(columns)
    assert groups.of(slots[1:]) is None
    groups._columns.attach(columns)
    sequences.open(int(slots[0]), 1, columns)
    again = groups.of(slots)
    assert again is not None and again.tokens.tolist() == [16, 16, 0]


def test_what_is_not_committed_is_not_shared() -> None:
    """A slot's table keeps what an earlier sequence had; only computed columns count."""
    groups, sequences, slots = held([(0, 0, 0), (0, 0, 0)], 2)
    sequences.truncate(int(slots[1]), 1)
    assert groups.of(slots) is None
    sequences.put_back(int(slots[1]), sequences.columns[slots[0], 1:3].copy())
    assert groups.of(slots) is None, "put back, but not computed"
    sequences.advance(int(slots[1]), 2)
    found = groups.of(slots)
    assert found is not None and found.tokens.tolist() == [24, 24]


def test_zero_turns_it_off() -> None:
    groups, _, slots = held([(0,) * 6] * 3, 0)
    assert groups.of(slots) is None


def test_a_staircase_of_prefixes_needs_no_deep_recursion() -> None:
    """Each row shares one column more with the next: the levels that are compared are bounded."""
    rows = 800
    columns, sequences = ColumnStore(2 * rows, 2), SequenceTable(rows, rows * BLOCK, BLOCK)
    chain = columns.add(np.zeros((rows, 2), np.int32), np.ones(rows, np.uint8))
    columns.refs[chain] = rows
    for slot in range(rows):
        sequences.open(slot, 1, chain[: slot + 1])
    slots = np.arange(rows, dtype=np.int32)
    found = PrefixGroups(columns, sequences, 2 * BLOCK).of(slots)
    assert found is not None and found.num_saved > 0
