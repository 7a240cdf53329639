"""Weights that do not fit together, on the virtual clock."""

from dataclasses import replace

import numpy as np
import pytest

from muxcluster.core.residency import Residency
from muxcluster.core.served import UnitStats
from muxcluster.sim.core.simulate import SimResult, simulate
from muxcluster.sim.core.unit import SimUnit
from muxcluster.workload.arrival import Arrival
from muxcluster.workload.metrics.records import Ending
from tests.sim.cases import arrivals, sim_unit

MODELS = ("a", "b", "c", "d")
GIB = 2**30
WAKE_S = 0.75


def tight_unit(room: int = 2, **changes) -> SimUnit:
    """Four models on one GPU with room for two."""
    unit = sim_unit(models=MODELS, lane=changes.pop("lane", "adbs"))
    models = tuple(
        replace(
            model,
            residency=changes.get("residency", Residency.AUTO),
            resident_bytes=13 * GIB,
            wake_s=changes.get("wake_s", WAKE_S),
        )
        for model in unit.spec.models
    )
    scheduler = replace(unit.spec.scheduler, wakes=changes.get("wakes", "deadline"))
    spec = replace(
        unit.spec,
        models=models,
        resident_bytes=room * 13 * GIB,
        scheduler=scheduler,
        host_link=changes.get("host_link", 0.0),
    )
    return SimUnit(spec, unit.models)


def wakes(result: SimResult) -> dict[str, int]:
    (stats,) = result.stats
    assert isinstance(stats, UnitStats)
    return {model.name: model.num_wakes for model in stats.models}


@pytest.mark.parametrize("policy", ["deadline", "swap"])
def test_every_request_ends_and_says_how_long_it_waited_for_weights(policy: str) -> None:
    result = simulate([tight_unit(wakes=policy)], arrivals(120, 2.0, MODELS))
    rows = result.records.rows
    assert result.records.is_finished.all() and len(rows) == 120
    waited = rows["queue_s"] + rows["preempted_s"]
    assert (rows["waking_s"] <= waited + 1e-9).all()
    assert (rows["waking_s"] > 0).any() and (rows["waking_s"] == 0).any()
    assert sum(wakes(result).values()) >= 2


@pytest.mark.parametrize("lane", ["adbs", "mixed", "temporal"])
def test_nothing_differs_where_steps_are_taken_together(lane: str) -> None:
    coming = arrivals(80, 3.0, MODELS, seed=3)
    spans: list[object] = []
    exact = simulate([tight_unit(lane=lane)], coming, exact=True, on_job=spans.append)
    together = simulate([tight_unit(lane=lane)], coming)
    assert together.num_jobs < len(spans)
    for name in ("first_token_s", "last_token_s", "waking_s"):
        np.testing.assert_allclose(exact.records.rows[name], together.records.rows[name], atol=1e-6)
    assert wakes(exact) == wakes(together)


def test_with_room_for_all_nothing_moves_and_nothing_differs() -> None:
    coming = arrivals(60, 3.0, MODELS)
    roomy, plain = tight_unit(room=4), sim_unit(models=MODELS)
    first, second = simulate([roomy], coming), simulate([plain], coming)
    assert wakes(first) == dict.fromkeys(MODELS, 0)
    np.testing.assert_array_equal(first.records.rows, second.records.rows)


def test_a_wake_takes_what_its_bytes_take_from_host_memory() -> None:
    unit = tight_unit(wake_s=0.0, host_link=float(13 * GIB))  # one second
    coming = [Arrival(1.0, "r", "d", 100, 5)]  # parked at first, as all rates are equal
    result = simulate([unit], coming)
    (row,) = result.records.rows
    assert row["waking_s"] == pytest.approx(1.0)
    assert row["first_token_s"] > 2.0


def test_what_is_not_resident_is_refused_where_nothing_moves() -> None:
    result = simulate([tight_unit(wakes="static")], arrivals(60, 3.0, MODELS))
    rows = result.records.rows
    served = {result.records.models[row["model"]] for row in rows if row["ending"] == 0}
    refused = {result.records.models[row["model"]] for row in rows if row["ending"] != 0}
    assert served == {"a", "b"} and refused == {"c", "d"}
    assert set(rows["ending"].tolist()) == {int(Ending.FINISHED), int(Ending.REJECTED)}


def test_one_model_at_a_time_swaps_when_what_runs_has_ended() -> None:
    coming = [
        Arrival(0.0, "1", "a", 50, 200),
        Arrival(1.0, "2", "b", 50, 5),
        Arrival(1.1, "3", "a", 50, 5),
        Arrival(1.2, "4", "c", 50, 5),
    ]
    unit = tight_unit(room=4, wakes="swap", residency=Residency.ON_DEMAND)
    rows = simulate([unit], coming).records.rows
    by_arrival = rows[np.argsort(rows["arrival_s"])]
    first_s, last_s = by_arrival["first_token_s"].tolist(), by_arrival["last_token_s"].tolist()
    # The second request for a came when a was to leave, and waits behind the one for c.
    for before, after in ((0, 1), (1, 3), (3, 2)):
        assert first_s[after] > last_s[before] + WAKE_S


def test_several_units_share_models_and_a_request_goes_where_its_weights_are() -> None:
    first = tight_unit(room=2, lane="mixed")
    second = SimUnit(replace(first.spec, unit_id="second"), first.models)
    coming = arrivals(150, 0.5, MODELS, seed=5)
    apart = simulate([first], coming)
    shared = simulate([first, second], coming)
    assert shared.records.is_finished.all()
    wakes_of = {unit.unit_id: sum(m.num_wakes for m in unit.models) for unit in shared.stats}
    assert len(wakes_of) == 2
    # memory for all four: each has a home after few wakes, and hardly any request waits
    assert (shared.records.rows["waking_s"] > 0).mean() < 0.1
    assert sum(wakes_of.values()) < sum(wakes(apart).values()) / 4
