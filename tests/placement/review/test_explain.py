"""Explanations against plans in which the model really was moved, or its rate raised."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.placement.hardware import GPUS
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.planner import place
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.review.assess import assess
from muxcluster.placement.review.explain import Alternative, Explanation, explain
from muxcluster.placement.shapes.known import SHAPES


def demand(name: str, shape: str, rate: float) -> Demand:
    return Demand(name, SHAPES[shape], rate, 161, 338, max_model_len=2048, max_seqs=64)


def problem_of(rates: dict[str, float], gpus: int) -> Problem:
    shapes = ("llama-2-7b", "opt-13b", "opt-1.3b", "llama-2-13b")
    demands = tuple(
        demand(name, shape, rate)
        for (name, rate), shape in zip(rates.items(), shapes, strict=False)
    )
    return Problem(demands, (Node("a", gpus, GPUS["A100-80GB"]), Node("l", 1, GPUS["L4"])))


def moved(plan: Plan, found: Explanation, there: Alternative) -> Plan:
    """The plan with the model taken from where it is and put there."""
    units: list[PlannedUnit] = []
    (model,) = (
        model
        for unit in plan.units
        if unit.id == found.place.unit
        for model in unit.models
        if model.name == found.model
    )
    for unit in plan.units:
        models = list(unit.models)
        if unit.id == found.place.unit:
            models.remove(model)
        if unit.id == there.place.unit:
            models.append(model)
        if models:
            units.append(unit.model_copy(update={"models": tuple(models)}))
    if there.place.unit is None:
        place = there.place
        new = {"id": "new", "node": place.node, "gpus": place.gpus, "tp": place.tp}
        units.append(plan.units[0].model_copy(update={**new, "models": (model,)}))
    return plan.model_copy(update={"units": tuple(units)})


RATES = st.fixed_dictionaries({name: st.floats(0.05, 60) for name in ("p", "q", "r", "s")})


@settings(max_examples=15)
@given(rates=RATES, gpus=st.integers(1, 4))
def test_other_places_are_worth_what_a_plan_with_the_model_there_is(rates, gpus) -> None:
    problem = problem_of(rates, gpus)
    plan = place(problem, "memory-greedy")  # every model in one unit: no replicas
    for name in rates:
        (found,) = explain(problem, plan, name)
        assert found.throughput == pytest.approx(plan.throughput)
        values = [each.value for each in found.alternatives if each.value is not None]
        assert values == sorted(values, reverse=True)
        for there in found.alternatives:
            other = moved(plan, found, there)
            if there.throughput is None:
                with pytest.raises(ValueError, match="does not fit"):
                    assess(problem, other)
                continue
            reports = assess(problem, other)
            served = sum(model.served for report in reports for model in report.models)
            assert there.throughput == pytest.approx(served)
            unit = there.place.unit or "new"
            assert there.load == next(each.load for each in reports if each.id == unit)


@settings(max_examples=15)
@given(rates=RATES)
def test_the_full_rate_is_the_last_that_is_served_in_full(rates) -> None:
    problem = problem_of(rates, 2)
    plan = place(problem, "memory-greedy")
    for position, name in enumerate(rates):
        (found,) = explain(problem, plan, name)
        for rate, is_full in ((found.full_rate * 0.999, True), (found.full_rate * 1.001, False)):
            if rate == 0:
                continue
            demands = list(problem.demands)
            demands[position] = replace(problem.demands[position], rate=rate)
            raised = Problem(tuple(demands), problem.nodes)
            (report,) = (each for each in assess(raised, plan) if each.id == found.place.unit)
            assert (min(model.share for model in report.models) >= 1 - 1e-9) == is_full


def test_every_idle_mesh_size_is_a_place_and_its_own_mesh_is_none() -> None:
    problem = Problem((demand("p", "opt-13b", 1.0),), (Node("a", 4, GPUS["A100-80GB"]),))
    plan = place(problem, "memory-greedy")
    (found,) = explain(problem, plan, "p")
    own = found.place.gpus
    assert found.load_without == 0 and found.neighbours == ()
    assert found.marginal == pytest.approx(found.served)
    sizes = {each.place.tp for each in found.alternatives}
    assert sizes == {1, 2, 4} - {len(own)} or sizes == {1, 2, 4}
    assert all(each.place.gpus != own for each in found.alternatives)


def test_an_unknown_model_is_refused() -> None:
    problem = problem_of({"chat": 1.0}, 1)
    with pytest.raises(ValueError, match="did you mean chat"):
        explain(problem, place(problem), "chatt")
