"""Reads that a prefix-shared kernel spares: what the plans believe, against groups counted out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.offline.blend.lengths import known_lengths
from muxcluster.offline.blend.shared_reads import shared_reads
from muxcluster.offline.choice import Unplanned, summary_of
from muxcluster.offline.order.orders import OfflineJob, order_requests
from muxcluster.offline.prefix.prompts import token_prompts
from tests.offline.blend_cases import MODEL, Case, case_of, cases

AMPLE = 1e12


def _by_number(case: Case, size_bytes: float, least: int) -> list[float]:
    found = shared_reads(case.tree, MODEL, known_lengths(case.by_place), size_bytes, least)
    shares = np.empty_like(found)
    shares[case.tree.order] = found
    return shares.tolist()


def test_each_reads_its_part_of_what_all_share() -> None:
    prefix = (1, 2, 3, 4)
    case = case_of([(*prefix, 5), (*prefix, 6), (*prefix, 7), (9,)], [10, 10, 20, 10])
    shares = _by_number(case, AMPLE, 4)
    # reads: 5 tokens of prompt for each of 10 output tokens, and 10 * 10 / 2 of the output
    assert shares[0] == shares[1] == pytest.approx(10 * 4 * (2 / 3) / (5 * 10 + 50))
    assert shares[2] == pytest.approx(20 * 4 * (2 / 3) / (5 * 20 + 200))
    assert shares[3] == 0
    assert _by_number(case, AMPLE, 5) == [0, 0, 0, 0]
    assert _by_number(case, AMPLE, 0) == [0, 0, 0, 0]


def test_no_more_share_than_memory_holds_at_once() -> None:
    prefix = (1, 2, 3, 4)
    case = case_of([(*prefix, 5 + n) for n in range(8)], [10] * 8)
    # beside the prefix each holds a token of its prompt and half of its output
    two = (4 + 2 * 6) * MODEL.kv_bytes
    assert _by_number(case, two, 1) == pytest.approx([10 * 4 * (1 / 2) / (5 * 10 + 50)] * 8)
    assert _by_number(case, 1.0, 1) == [0] * 8


@given(cases(), st.integers(1, 4))
def test_a_share_is_what_the_best_of_the_prefixes_above_spares(case: Case, least: int) -> None:
    shares = _by_number(case, AMPLE, least)
    for number, (prompt, output) in enumerate(zip(case.sequences, case.outputs, strict=True)):
        best = 0.0
        for length in range(least, len(prompt) + 1):
            members = sum(each[:length] == prompt[:length] for each in case.sequences)
            best = max(best, length * (1 - 1 / members))
        read = len(prompt) * output + output * output / 2
        assert shares[number] == pytest.approx(best * output / read)
        assert 0 <= shares[number] < 1


def _job(least: int) -> OfflineJob:
    """Two families of equal size: long prefixes and outputs, and requests by themselves."""
    rng = np.random.default_rng(0)
    prefix = rng.integers(0, 1000, 400)
    shared = [np.concatenate((prefix, rng.integers(0, 1000, 8))) for _ in range(20)]
    alone = [rng.integers(0, 1000, 100) for _ in range(20)]
    tokens = [each.astype(np.int32) for each in (*shared, *alone)]
    prompts = token_prompts(tokens)
    outputs = np.full(40, 60)
    return Unplanned(prompts, outputs, MODEL, 1e6, 16, 0, least).with_tree()


def test_plans_count_what_is_read_once_as_read_once() -> None:
    plain, kernel = _job(0), _job(128)
    assert summary_of(kernel).memory_s < 0.6 * summary_of(plain).memory_s
    assert summary_of(kernel).compute_s == summary_of(plain).compute_s
    with_kernel = order_requests(kernel, "blend").tolist()
    assert sorted(with_kernel) == list(range(40))
    in_family = plain.tree.order < 20
    few, many = (job.leaf_work().density for job in (plain, kernel))
    assert (many[in_family] > 4 * few[in_family]).all()
    assert (many[~in_family] == few[~in_family]).all()
