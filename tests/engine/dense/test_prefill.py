"""Prompts of similar lengths are prefilled together."""

from hypothesis import given
from hypothesis import strategies as st

from muxcluster.engine.dense.prefill import similar


@given(st.lists(st.integers(1, 500), max_size=40), st.floats(0, 2))
def test_groups_stay_below_their_padding(lengths: list[int], most_padding: float) -> None:
    groups = similar(lengths, most_padding=most_padding)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        tokens = sum(lengths[index] for index in group)
        padded = max(lengths[index] for index in group) * len(group)
        assert padded <= (1 + most_padding) * tokens + 1e-6


def test_without_padding_only_equal_lengths_are_together() -> None:
    assert similar([3, 5, 3, 5, 4], most_padding=0) == [[1, 3], [4], [0, 2]]


def test_similar_lengths_are_together() -> None:
    assert similar([100, 10, 90, 11], most_padding=0.25) == [[0, 2], [3, 1]]
