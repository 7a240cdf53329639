"""A job over several units: everything once, evenly in both resources, families together."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.offline.blend.divide import divide
from muxcluster.offline.blend.pieces import cut
from muxcluster.offline.tree import build_tree
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
