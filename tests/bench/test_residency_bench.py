"""What bench/residency.py makes of its measurements; the slow run of it is in test_quick.py."""

import numpy as np
import pytest

from bench.online.parked import Load, Pace, Wakes, trace_of
from bench.residency import Measured
from muxcluster.core.events import Finished, FinishReason, TokenDelta

WAKES = Wakes(800, 1000, pack_s=(0.9, 0.8, 0.7), copy_s=(0.5,), wake_s=(2.0, 1.0, 2.5))


def row(system: str, in_time: float, p99_s: float = 1.0, lost: int = 0) -> dict:
    return {"system": system, "in_time": in_time, "ttft_p99_s": p99_s, "lost": lost}


def claims(rows: list[dict], killed_lost: int = 0) -> dict[str, float]:
    pairs = [(Pace(100.0, 10.0), Pace(99.0, 11.0))] * 3
    found = Measured(WAKES, rows, row("ours", 1.0, lost=killed_lost), pairs).claims()
    return {claim.name: claim.value for claim in found}


def test_a_wake_is_held_against_packing_the_same_number_of_bytes() -> None:
    assert WAKES.over_possible() == pytest.approx((0.8 / 800) / (2.0 / 1000))
    assert WAKES.over_copy() == pytest.approx(0.25)


def test_the_systems_are_compared_where_swap_begins_to_fail() -> None:
    rows = [row("ours", 1.0), row("swap", 0.95), row("ours", 0.9, 2.0), row("swap", 0.3, 8.0)]
    rows += [row("ours", 0.5), row("swap", 0.01)]
    found = claims(rows)
    assert found["engine_in_time_over_swap"] == 3.0
    assert found["engine_p99_cut_over_swap"] == 4.0
    assert claims(rows[:2])["engine_in_time_over_swap"] == pytest.approx(1.053)


def test_what_ours_loses_is_counted_in_all_its_runs() -> None:
    rows = [row("ours", 1.0, lost=2), row("swap", 0.5, lost=9)]
    assert claims(rows, killed_lost=3)["requests_lost"] == 5


def test_ratios_of_pairs_are_medians() -> None:
    found = claims([row("ours", 1.0), row("swap", 1.0)])
    assert found["throughput_beside_sleepers"] == 0.99
    assert found["tokens_per_cpu_s_beside_sleepers"] == 1.1


def test_the_first_name_is_asked_most_and_arrivals_have_the_rate() -> None:
    asks = trace_of(["a", "b", "c", "d"], 50.0, 40.0, 1)
    assert len(asks) == pytest.approx(2000, rel=0.1)
    counts = [sum(each.model == name for each in asks) for name in "abcd"]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] / counts[1] == pytest.approx(2.0, rel=0.2)
    assert all(np.diff([each.at_s for each in asks]) >= 0)


def test_a_request_without_a_whole_answer_is_lost() -> None:
    asks = trace_of(["a"], 1.0, 3.0, 0)[:2]
    load = Load(asks, sent_s={each.request_id: 0.0 for each in asks})
    whole, cut = (each.request_id for each in asks)
    end = Finished(whole, FinishReason.LENGTH)
    load.hear({whole: TokenDelta(tuple(range(8)), finished=end)})
    load.hear({cut: TokenDelta((1,), finished=Finished(cut, FinishReason.ERROR))})
    assert load.result()["lost"] == 1
    with pytest.raises(AssertionError, match="ended twice"):
        load.hear({whole: TokenDelta(finished=end)})
