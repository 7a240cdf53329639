"""A job over several units: everything once, evenly in both resources, families together."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.offline.blend.divide import divide
from muxcluster.offline.blend.pieces import cut
from muxcluster.offline.prefix.tree import build_tree
from tests.offline.blend_cases import MODEL, Case, case_of, cases, cost
from tests.offline.naive import prompts_of


@given(cases(), st.integers(1, 6))
def test_every_request_is_in_one_part(case: Case, num_parts: int) -> None:
    pieces = cut(case.tree, MODEL, case.leaves)
    parts = divide(pieces, num_parts)
    assert len(parts) == num_parts
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(case.sequences)))
    if num_parts == 1:
        assert parts[0].tolist() == pieces.places.tolist()


def _shares(case: Case, parts: Sequence[Sequence[int]]) -> np.ndarray:
    """Compute and memory of each part over its even share."""
    each = np.array([cost(case.at(part)) for part in parts])
    return each / each.mean(axis=0)


def test_parts_are_even_in_compute_and_memory_and_keep_families_together() -> None:
    rng = np.random.default_rng(1)
    sequences, outputs = [], []
    for family in range(120):
        output = int(rng.choice([2, 10, 80]))
        for member in range(int(rng.integers(1, 9))):
            sequences.append((family, *range(int(rng.integers(5, 30))), 1000 + member))
            outputs.append(output)
    case = case_of(sequences, outputs)
    parts = divide(cut(case.tree, MODEL, case.leaves), 4)
    shares = _shares(case, [part.tolist() for part in parts])
    assert shares == pytest.approx(1.0, abs=0.05)
    families = [{prompt[0] for prompt, _ in case.at(part.tolist())} for part in parts]
    assert sum(map(len, families)) == 120


def test_a_family_larger_than_a_part_is_divided() -> None:
    sequences = [(1, 2, 3, i) for i in range(40)] + [(9, i) for i in range(8)]
    case = case_of(sequences, [20] * 48)
    parts = divide(cut(case.tree, MODEL, case.leaves), 3)
    assert _shares(case, [part.tolist() for part in parts]) == pytest.approx(1.0, abs=0.15)
    saved = 0
    for part in parts:
        tree = build_tree(prompts_of([prompt for prompt, _ in case.at(part.tolist())]))
        saved += tree.saved_tokens
    assert case.tree.saved_tokens - saved <= 2 * 3 + 2 * 1


def _worst(used: np.ndarray, part_of: Sequence[int], num_parts: int) -> float:
    """The most that a part has of either resource; used: share of the whole by piece, [k, 2]."""
    loads = np.zeros((num_parts, 2))
    np.add.at(loads, list(part_of), used)
    return float(loads.max())


@pytest.mark.parametrize("seed", range(20))
def test_small_jobs_are_divided_nearly_as_evenly_as_any_division_could(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 40, 9).tolist()
    sequences = [(family, *range(100, 100 + size)) for family, size in enumerate(sizes)]
    outputs = rng.integers(1, 40, 9).tolist()
    case = case_of(sequences, outputs)
    num_parts = 2 + seed % 2
    pieces = cut(case.tree, MODEL, case.leaves)
    parts = divide(pieces, num_parts)
    used = np.array([cost(case.at([place])) for place in range(9)])
    used /= used.sum(axis=0)
    mine = {place: part for part, places in enumerate(parts) for place in places.tolist()}
    found = _worst(used, [mine[place] for place in range(9)], num_parts)
    best = min(_worst(used, each, num_parts) for each in product(range(num_parts), repeat=9))
    assert best <= found <= 1.25 * best


def test_faster_units_get_more() -> None:
    rng = np.random.default_rng(3)
    sequences = [(family, *range(100, 100 + int(rng.integers(5, 30)))) for family in range(300)]
    case = case_of(sequences, rng.integers(1, 60, 300).tolist())
    pieces = cut(case.tree, MODEL, case.leaves)
    parts = divide(pieces, 3, np.array([(10.0, 4.0), (5.0, 2.0), (5.0, 2.0)]))
    shares = _shares(case, [part.tolist() for part in parts])
    wanted = np.array([(1.5, 1.5), (0.75, 0.75), (0.75, 0.75)])
    assert shares == pytest.approx(wanted, rel=0.05)
