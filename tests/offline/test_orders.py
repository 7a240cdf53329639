"""Orders by name: each runs every request once; what each is for, on one small job."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.offline.baselines.lifetimes import prefix_lifetimes
from bench.offline.baselines.lru import lru_saved_tokens
from muxcluster.offline.blend.lengths import known_lengths
from muxcluster.offline.order.orders import ORDERS, OfflineJob, order_requests
from tests.offline.blend_cases import MODEL, Case, case_of, cases


def _job(case: Case, seed: int = 0) -> OfflineJob:
    return OfflineJob(case.tree, known_lengths(case.by_place), MODEL, 3000.0, seed)


@given(cases(), st.sampled_from(list(ORDERS)), st.integers(0, 3))
def test_every_order_runs_every_request_once(case: Case, name: str, seed: int) -> None:
    order = order_requests(_job(case, seed), name)
    assert sorted(order.tolist()) == list(range(len(case.sequences)))
    assert np.array_equal(order, order_requests(_job(case, seed), name))


def test_planned_orders_share_what_arrival_order_loses() -> None:
    # families arrive in turn; the odd ones decode much
    sequences = [(family, *range(50), member) for member in range(8) for family in range(12)]
    case = case_of(sequences, [40 if prompt[0] % 2 else 2 for prompt in sequences])
    job, tree = _job(case), case.tree
    peak = prefix_lifetimes(tree, tree.order).peak_tokens
    orders = {name: order_requests(job, name).tolist() for name in ORDERS}
    saved = {
        name: lru_saved_tokens(tree, order, 2 * peak) / tree.saved_tokens
        for name, order in orders.items()
    }
    assert saved["dfs"] == saved["batchllm"] == 1.0
    assert saved["blend"] > 0.9 and saved["blend-groups"] > 0.9
    assert saved["fcfs"] == 0.0 and saved["random"] < 0.3
    assert case.outputs[orders["batchllm"][0]] == 40 and case.outputs[orders["dfs"][0]] == 2
    begin = orders["blend"][: len(sequences) // 3]
    assert {case.outputs[number] for number in begin} == {2, 40}


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown order 'lifo': expected one of blend, "):
        order_requests(_job(case_of([(1,)], [1])), "lifo")
