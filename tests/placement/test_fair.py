"""The objective "fair": no model is starved where not all can be served."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.planning.verify import violations
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.memory import DoesNotFit
from muxcluster.placement.plan import Plan
from muxcluster.placement.planner import place
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.sim.cases.case import Case, run_case
from muxcluster.sim.cases.systems import system_named
from muxcluster.sim.demand.loads import Synthetic
from muxcluster.workload.generate import Source
from muxcluster.workload.lengths import Independent
from muxcluster.workload.marginals import LogNormal
from muxcluster.workload.processes import Poisson
from tests.amounts import examples

NODE = (Node("n", 4, GPUS["A100-80GB"]),)


def demand(name: str, shape: str, rate: float) -> Demand:
    return Demand(name, SHAPES[shape], rate, 161, 338, max_model_len=2048, max_seqs=256)


def parts(problem: Problem, plan: Plan) -> dict[str, float]:
    """Part of its rate that each model is promised."""
    served = dict.fromkeys((each.name for each in problem.demands), 0.0)
    for unit in plan.units:
        for model in unit.models:
            served[model.name] += model.throughput
    return {each.name: served[each.name] / each.rate for each in problem.demands}


SHORT = Problem((demand("small", "llama-2-7b", 60.0), demand("large", "qwen2.5-32b", 12.0)), NODE)


@pytest.fixture(scope="module")
def most() -> Plan:
    """The plan for requests/s of a cluster that is short."""
    return place(SHORT, time_limit_s=0)


@pytest.fixture(scope="module")
def fair() -> Plan:
    """The fair plan of the same."""
    return place(replace(SHORT, objective="fair"), time_limit_s=0)


def test_a_large_model_gets_as_much_of_its_rate_as_a_small_one(most: Plan, fair: Plan) -> None:
    assert violations(fair, SHORT) == []
    starved, even = parts(SHORT, most), parts(SHORT, fair)
    assert starved["large"] < 0.5 * starved["small"]
    assert even["large"] > 0.75 * even["small"]
    assert even["large"] > 1.5 * starved["large"]
    assert fair.throughput <= most.throughput
    assert fair.score == pytest.approx(min(even.values()), abs=1e-6)
    assert (fair.objective, fair.bound) == ("fair", None)


def came(problem: Problem, plan: Plan) -> dict[str, float]:
    """Part of the output tokens asked of each model that came in simulated seconds."""
    lengths = Independent(*(LogNormal.of_mean(mean, {50: 0.6 * mean}) for mean in (161.0, 338.0)))
    sources = tuple(Source(each.name, Poisson(each.rate), lengths) for each in problem.demands)
    case = Case(system_named("muxserve"), plan, problem, Synthetic(sources), duration_s=30.0)
    report = run_case(case)
    return {
        name: group.tokens_per_s / (338.0 * group.offered_per_s)
        for name, group in report.models.items()
    }


def test_what_a_fair_plan_promises_is_what_is_simulated(most: Plan, fair: Plan) -> None:
    """Half a minute from an idle start: long requests of the large model come late."""
    found = came(SHORT, fair)
    assert found["large"] > 0.65 * found["small"]
    assert found["large"] > 1.25 * parts(SHORT, most)["large"]


@settings(deadline=None, max_examples=examples(2, 30))
@given(
    wanted=st.lists(
        st.tuples(st.sampled_from(("llama-2-7b", "llama-2-13b", "qwen2.5-32b")), st.floats(1, 40)),
        min_size=1,
        max_size=4,
    ),
    num_gpus=st.integers(1, 4),
)
def test_nobody_gets_less_than_the_least_under_the_objective_throughput(wanted, num_gpus) -> None:
    demands = tuple(demand(f"m{i}", shape, rate) for i, (shape, rate) in enumerate(wanted))
    problem = Problem(demands, (replace(NODE[0], num_gpus=num_gpus),))
    try:
        most = place(problem, time_limit_s=0)
    except DoesNotFit:
        with pytest.raises(DoesNotFit):
            place(replace(problem, objective="fair"), time_limit_s=0)
        return
    fair = place(replace(problem, objective="fair"), time_limit_s=0)
    assert violations(fair, problem) == []
    assert min(parts(problem, fair).values()) >= min(parts(problem, most).values()) - 2e-3
    assert fair.score == pytest.approx(min(1.0, *parts(problem, fair).values()), abs=1e-6)


def test_where_all_is_served_the_plan_is_that_of_the_most_requests() -> None:
    enough = SHORT.at_rates(0.1)
    most = place(enough, time_limit_s=0)
    fair = place(replace(enough, objective="fair"), time_limit_s=0)
    assert most.throughput == pytest.approx(7.2)
    assert (fair.units, fair.score) == (most.units, pytest.approx(1.0))


def test_a_fair_plan_in_force_is_kept(fair: Plan) -> None:
    again = place(replace(SHORT, objective="fair"), time_limit_s=0, current=fair)
    where = [
        sorted(
            (unit.node, unit.gpus, tuple(model.name for model in unit.models))
            for unit in plan.units
        )
        for plan in (fair, again)
    ]
    assert where[0] == where[1]
