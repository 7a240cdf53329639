"""Whole simulations: every request ends once, time adds up, seeds decide, replicas share."""

import numpy as np
import pytest

from muxcluster.sim.core.simulate import simulate
from muxcluster.workload.arrival import Arrival, Prefix
from muxcluster.workload.metrics.records import PARTS, Ending
from tests.sim.cases import arrivals, sim_unit

LANES = ("adbs", "temporal", "round-robin", "mixed")


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("lane", LANES)
def test_every_request_ends_once_with_all_its_tokens(lane: str, exact: bool) -> None:
    asked = arrivals(60, rate=8.0)
    rows = simulate([sim_unit(lane=lane)], asked, exact=exact).records.rows
    assert sorted(rows["arrival_s"]) == [each.time_s for each in asked]
    assert (rows["ending"] == Ending.FINISHED).all()
    assert rows["output_tokens"].sum() == sum(each.output_tokens for each in asked)
    assert (rows["arrival_s"] < rows["first_token_s"]).all()
    assert (rows["first_token_s"] <= rows["last_token_s"]).all()
    one_token = rows["output_tokens"] == 1
    assert (rows["first_token_s"] == rows["last_token_s"])[one_token].all()
    parts = sum(rows[part] for part in PARTS)
    assert np.allclose(parts, rows["last_token_s"] - rows["arrival_s"])


@pytest.mark.parametrize("exact", [True, False])
def test_scarce_memory_preempts_and_still_ends_everyone(exact: bool) -> None:
    result = simulate([sim_unit(num_columns=260)], arrivals(80, rate=20.0), exact=exact)
    rows = result.records.rows
    assert len(rows) == 80
    assert (rows["ending"] == Ending.FINISHED).all()
    assert rows["queue_s"].max() > 1


def test_a_request_too_long_is_refused_and_one_that_fills_the_context_is_cut() -> None:
    asked = [Arrival(0.0, "long", "a", 3000, 5), Arrival(0.1, "full", "a", 2000, 500)]
    rows = simulate([sim_unit()], asked).records.rows
    assert rows["ending"].tolist() == [Ending.REJECTED, Ending.FINISHED]
    assert np.isnan(rows["first_token_s"][0])
    assert rows["output_tokens"].tolist() == [0, 48]


def test_the_same_arrivals_give_the_same_records_bit_by_bit() -> None:
    first, again = (
        simulate([sim_unit()], arrivals(40, 10.0), exact=False).records.rows for _ in range(2)
    )
    assert first.tobytes() == again.tobytes()


def test_replicas_share_the_load_and_other_units_are_not_disturbed() -> None:
    asked = arrivals(60, 30.0, ("a", "b"))
    both = [sim_unit("x", ("a",)), sim_unit("y", ("a", "b"))]
    alone = simulate(both[1:], asked).records
    shared = simulate(both, asked).records
    mean = [
        float((r["last_token_s"] - r["arrival_s"])[r["model"] == r_index].mean())
        for r, r_index in (
            (alone.rows, alone.models.index("a")),
            (shared.rows, shared.models.index("a")),
        )
    ]
    assert mean[1] < mean[0]
    assert len(shared) == 60


def test_equal_prefixes_are_computed_once() -> None:
    prompt = Prefix(tuple(range(4)), 256)
    others = Prefix(tuple(range(4, 8)), 256)
    asked = [Arrival(0.0, "x", "a", 1024, 2, prefix=prompt)]
    same = [*asked, Arrival(5.0, "y", "a", 1024, 2, prefix=prompt)]
    different = [*asked, Arrival(5.0, "y", "a", 1024, 2, prefix=others)]
    hit, miss = (simulate([sim_unit()], each).records.rows for each in (same, different))
    assert hit["prefill_s"][1] < 0.5 * hit["prefill_s"][0]
    assert miss["prefill_s"][1] == pytest.approx(miss["prefill_s"][0])


def test_what_is_still_running_at_the_end_is_kept_as_unfinished() -> None:
    asked = arrivals(40, 10.0)
    result = simulate([sim_unit()], asked, until_s=2.5)
    rows = result.records.rows
    assert len(rows) == sum(each.time_s < 2.5 for each in asked)
    unfinished = rows[rows["ending"] == Ending.UNFINISHED]
    assert len(unfinished)
    running = unfinished[~np.isnan(unfinished["first_token_s"])]
    assert (running["output_tokens"] >= 1).all()
    assert (running["last_token_s"] <= 2.5).all()
