"""Several units with the same models, of which a request goes to the one that has the weights."""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.planning.verify import violations
from muxcluster.core.residency import Residency
from muxcluster.placement.estimator import Estimator, equal_units
from muxcluster.placement.estimator.weight_memory import WeightMemory
from muxcluster.placement.hardware import GIB, GPUS
from muxcluster.placement.plan import Plan
from muxcluster.placement.planner import place
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.quota import split_among_awake, split_blocks
from muxcluster.placement.review.assess import assess
from muxcluster.placement.review.explain import explain
from muxcluster.placement.review.headroom import headroom
from muxcluster.placement.search.gpus import kinds_of
from muxcluster.placement.search.layout import UnitBuilder, merit, singles, value
from muxcluster.sim.core.planned import units_of
from muxcluster.sim.core.simulate import simulate
from muxcluster.sim.demand.loads import poisson_load
from tests.placement.test_planner_properties import demand
from tests.placement.test_weight_memory import lru_wakes

GPU = GPUS["A100-80GB"]


def sleepers(count: int, rate: float, **changes) -> tuple[Demand, ...]:
    """Models of which a GPU holds two, all asked for equally often."""
    return tuple(
        replace(
            demand(f"m{index:02}", "llama-2-13b", rate, max_seqs=32, max_model_len=1024),
            residency=Residency.AUTO,
            **changes,
        )
        for index in range(count)
    )


def on(num_gpus: int, demands: tuple[Demand, ...], **changes) -> Problem:
    return Problem(demands, (Node("n", num_gpus, GPU),), **changes)


@pytest.mark.parametrize(("num_units", "num_at_once"), [(2, 3), (4, 2)])
def test_memory_of_equal_units_is_one_cache(num_units: int, num_at_once: int) -> None:
    num_models = 20
    rates = [1.0 / (rank + 1) for rank in range(num_models)]
    sizes = (GIB,) * num_models
    seconds = (1e-9,) * num_models
    parts = [rate / num_units for rate in rates]
    found = WeightMemory(num_at_once, num_at_once * GIB, sizes, seconds, num_units=num_units)
    room = num_units * num_at_once * GIB
    seen = lru_wakes(rates, list(sizes), room, 1, 40_000 / sum(rates))
    assert num_units * sum(found.wakes_per_s(parts)) == pytest.approx(sum(seen), rel=0.12)
    awake = found.awake(parts)
    assert sum(awake) == pytest.approx(num_at_once, rel=1e-3)  # of each unit's memory, all is used
    # requests that go anywhere would wake far more
    apart = WeightMemory(num_at_once, num_at_once * GIB, sizes, seconds)
    assert sum(apart.wakes_per_s(parts)) > 1.3 * sum(found.wakes_per_s(parts))


def test_a_unit_more_means_shorter_waits() -> None:
    rates, sizes, seconds = [0.2] * 12, (GIB,) * 12, (1.0,) * 12
    waits = []
    for num_units in (1, 2, 3, 6):
        memory = WeightMemory(2, 2 * GIB, sizes, seconds, num_units=num_units)
        waits.append(memory.waits([rate / num_units for rate in rates], [0.5] * 12)[0].high)
    assert waits == sorted(waits, reverse=True)
    assert waits[-1] == 0.0  # there is room for all


AWAKE = st.lists(
    st.tuples(
        st.integers(1, 60),  # floor
        st.floats(0.01, 10),  # weight
        st.floats(0.0, 1.0),  # part of the time awake
    ),
    min_size=1,
    max_size=8,
)


@given(models=AWAKE, num_blocks=st.integers(500, 5000))
def test_a_sleeper_takes_from_others_what_it_has_on_average(models, num_blocks) -> None:
    floors, weights, awake = (list(each) for each in zip(*models, strict=True))
    most = [num_blocks] * len(models)
    found = split_among_awake(num_blocks, floors, weights, most, awake)
    assert all(floor <= each <= num_blocks for floor, each in zip(floors, found, strict=True))
    mean = sum(each * part for each, part in zip(found, awake, strict=True))
    assert mean <= num_blocks * (1 + 1e-9) + 1e-3 * num_blocks * len(models)
    always = split_blocks(num_blocks, floors, weights, most)
    stays = split_among_awake(num_blocks, floors, weights, most, [1.0] * len(models))
    assert all(abs(x - y) <= len(models) for x, y in zip(stays, always, strict=True))


def test_who_stays_has_what_sleepers_leave() -> None:
    weights, floors, most = [1.0, 1.0, 1.0], [10, 10, 10], [1000] * 3
    assert split_among_awake(300, floors, weights, most, [1.0, 1.0, 1.0]) == (100, 100, 100)
    stays, first, second = split_among_awake(300, floors, weights, most, [1.0, 0.25, 0.25])
    assert stays == pytest.approx(200, abs=1) and first == second == pytest.approx(200, abs=1)
    # rare ones have their floor while they are awake, and hardly count otherwise
    stays, rare, _ = split_among_awake(
        300, [10, 50, 50], [1.0, 1e-6, 1e-6], most, [1.0, 0.01, 0.01]
    )
    assert rare >= 50 and stays >= 298


def test_equal_units_add_up_to_their_parts() -> None:
    demands = sleepers(8, 0.01)
    builder = UnitBuilder(Estimator(on(3, demands)), kinds_of([Node("n", 3, GPU)]))
    offers = [(index, 0.01) for index in range(8)]
    one = builder.unit(GPU, 1, offers)
    assert one is not None
    two = builder.one_more(one)
    assert two is not None and (two.count, two.num_gpus, two.estimate.num_units) == (2, 2, 2)
    parts = singles([two])
    assert [part.offers for part in parts] == [tuple((index, 0.005) for index in range(8))] * 2
    assert merit(parts) == pytest.approx(two.merit) and value(parts) == pytest.approx(value([two]))
    assert sum(two.estimate.wakes_per_s()) < 0.5 * sum(one.estimate.wakes_per_s())
    assert builder.relief(two, one) > 0
    few = builder.unit(GPU, 1, offers[:2])
    assert few is not None and builder.one_more(few) is None  # both stay


@cache
def pooled_plan() -> tuple[Problem, Plan]:
    problem = on(2, sleepers(5, 0.03, ttft_s=2.0, tpot_s=0.2))
    return problem, place(problem, time_limit_s=0)


def test_the_planner_lets_models_wake_on_any_of_several_gpus() -> None:
    problem, plan = pooled_plan()
    assert violations(plan, problem) == []
    assert max(len(equal_units(plan, unit)) for unit in plan.units) > 1
    homes = Counter(model.name for unit in plan.units for model in unit.models)
    assert max(homes.values()) > 1
    reports = assess(problem, plan)
    assert any(report.equal_units for report in reports)
    assert headroom(problem, plan).factor > 1
    name = homes.most_common(1)[0][0]
    for each in explain(problem, plan, name):
        assert each.full_rate > 0
        assert all(other.place.unit not in equal_ids(plan, name) for other in each.alternatives)
    again = place(problem, time_limit_s=0, current=plan)
    assert again.units == plan.units


def equal_ids(plan: Plan, name: str) -> set[str]:
    return {unit.id for unit in plan.units if name in {model.name for model in unit.models}}


def test_what_is_planned_for_equal_units_is_simulated() -> None:
    problem, plan = pooled_plan()
    coming = poisson_load(problem.demands, 0.9).arrivals(0, 400.0)
    result = simulate(units_of(plan, problem), coming)
    planned = sum(model.wakes_per_h for unit in plan.units for model in unit.models) / 3600
    seen = sum(model.num_wakes for unit in result.stats for model in unit.models) / result.end_s
    late = (result.records.rows["waking_s"] > 0).mean()
    assert result.records.is_finished.all()
    assert planned / 3 < seen < 2 * planned and late < 0.4


def test_wakes_grow_where_requests_hold_the_memory_and_are_at_most_one_a_request() -> None:
    rates, sizes, seconds = [0.1] * 9, (GIB,) * 9, (1.0,) * 9
    memory = WeightMemory(2, 2 * GIB, sizes, seconds, num_units=3)
    parts = [rate / 3 for rate in rates]
    found = [sum(memory.wakes_with_returns(parts, [span] * 9)) for span in (0.01, 2.0, 5.0, 20.0)]
    assert found == sorted(found)
    assert found[0] == pytest.approx(sum(memory.wakes_per_s(parts)), rel=0.02)
    assert found[-1] <= sum(parts) * (1 + 1e-9)


def test_the_part_in_time_grows_with_the_target_and_agrees_with_the_quantiles() -> None:
    rates, sizes, seconds, spans = [0.05] * 8, (GIB,) * 8, (1.0,) * 8, [1.0] * 8
    memory = WeightMemory(3, 3 * GIB, sizes, seconds)
    found = [memory.in_time(rates, spans, [target] * 8)[0] for target in (0.0, 0.5, 1.0, 3.0, 60.0)]
    assert found == sorted(found) and 0 < found[0] < found[-1] <= 1.0
    high = memory.waits(rates, spans)[0].high
    assert memory.in_time(rates, spans, [high * 1.01] * 8)[0] >= 0.93


def test_models_of_very_different_sizes_get_no_equal_units() -> None:
    """One that fills a unit would park all others there at each wake."""
    small = sleepers(6, 0.01)
    large = replace(demand("z", "llama-30b", 0.01, max_model_len=1024), residency=Residency.AUTO)
    demands = (*small, large)
    builder = UnitBuilder(Estimator(on(2, demands)), kinds_of([Node("n", 2, GPU)]))
    offers = [(index, 0.01) for index in range(len(demands))]
    assert builder.unit(GPU, 1, offers) is not None
    assert builder.unit(GPU, 1, offers, 2) is None
    assert builder.unit(GPU, 1, offers[:-1], 2) is not None
