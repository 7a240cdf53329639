"""Batch work beside interactive requests: estimates, plans, and what they never cost."""

from dataclasses import replace

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from bench.planning.verify import violations
from muxcluster.core.unitspec import SchedulerSpec
from muxcluster.placement.cost.resources import resource_model
from muxcluster.placement.estimator import Estimator
from muxcluster.placement.execution import UnitPolicy
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.plan import Plan
from muxcluster.placement.planner import place
from muxcluster.placement.problem import Backlog, Demand, Node, Problem
from muxcluster.placement.review.backlog import batch_units
from muxcluster.placement.review.headroom import headroom
from muxcluster.placement.shapes.known import SHAPES
from tests.amounts import examples

FAST = settings(
    deadline=None,
    max_examples=examples(6, 12),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
A100 = GPUS["A100-80GB"]
SHAPE_NAMES = ("llama-3.2-3b", "mistral-7b", "llama-2-7b")
BACKLOGS = st.none() | st.builds(
    Backlog,
    st.floats(10, 30_000),
    st.sampled_from((50.0, 500.0, 2000.0)),
    st.sampled_from((20.0, 200.0, 600.0)),
)
MODELS = st.lists(
    st.tuples(st.sampled_from(SHAPE_NAMES), st.floats(0.1, 20), BACKLOGS), min_size=1, max_size=3
)


def demand(name: str, shape: str = "mistral-7b", rate: float = 1.0, **changes) -> Demand:
    fields = {"prompt_tokens": 161, "output_tokens": 338, "max_model_len": 4096, "max_seqs": 128}
    return Demand(name=name, shape=SHAPES[shape], rate=rate, **{**fields, **changes})


def cluster(num_gpus: int = 1) -> tuple[Node, ...]:
    return (Node("n", num_gpus, A100),)


def problem(models, num_gpus: int = 1) -> Problem:
    demands = tuple(
        demand(f"m{i}", shape, rate, backlog=backlog)
        for i, (shape, rate, backlog) in enumerate(models)
    )
    return Problem(demands, cluster(num_gpus))


def tokens_of(plan: Plan) -> dict[str, float]:
    found: dict[str, float] = {}
    for unit in plan.units:
        for model in unit.models:
            if model.backlog_tokens_per_s is not None:
                found[model.name] = found.get(model.name, 0.0) + model.backlog_tokens_per_s
    return found


def unit_of(problem: Problem):
    estimator = Estimator(problem)
    offers = tuple((index, each.rate) for index, each in enumerate(problem.demands))
    found = estimator.unit(A100, 1, offers)
    assert found is not None
    return estimator, offers, found


@pytest.mark.slow
@FAST
@given(models=MODELS, num_gpus=st.integers(1, 2))
def test_no_plan_with_batch_work_serves_interactive_requests_less(models, num_gpus) -> None:
    _check_served(problem(models, num_gpus))


@pytest.mark.parametrize(
    "models",
    [
        [("mistral-7b", 0.5, Backlog(20_000.0, 500.0, 200.0)), ("llama-3.2-3b", 4.0, None)],
        [("mistral-7b", 60.0, Backlog(500.0, 50.0, 600.0))],
    ],
)
def test_a_plan_with_batch_work_serves_interactive_requests_no_less(models) -> None:
    _check_served(problem(models))


def _check_served(asked: Problem) -> None:
    without, beside = place(asked.without_backlogs(), time_limit_s=0), place(asked, time_limit_s=0)
    assert violations(beside, asked) == []
    # objectives within a millionth are equal
    assert beside.throughput >= without.throughput * (1 - 1e-5) - 1e-9
    done = tokens_of(beside)
    wanted = {each.name: each.backlog.tokens_per_s for each in asked.demands if each.backlog}
    assert done.keys() == wanted.keys()
    assert all(0 <= done[name] <= wanted[name] * (1 + 1e-9) for name in wanted)


@FAST
@example(
    [
        ("mistral-7b", 3.8144917811132424, Backlog(2929.5997435443865, 500.0, 200.0)),
        ("mistral-7b", 10.1654532263049, None),
        ("llama-3.2-3b", 8.591556519812448, Backlog(26170.013460690927, 50.0, 200.0)),
    ],
    2.2072357831687466,
)
@given(models=MODELS, factor=st.floats(1.2, 8))
def test_more_batch_work_never_raises_what_interactive_requests_get(models, factor) -> None:
    few = problem(models)
    demands = tuple(
        replace(
            each,
            backlog=each.backlog
            and replace(each.backlog, tokens_per_s=factor * each.backlog.tokens_per_s),
        )
        for each in few.demands
    )
    *_, now = unit_of(few)
    *_, more = unit_of(replace(few, demands=demands))
    assert now.served == more.served
    assert now.value == more.value
    if now.backlog is not None:
        # About as much is done as can be: the search for it is 2 % exact, on each of two scales. On
        # a full unit it fills what the interactive requests may miss and still count as served.
        served = sum(
            part * each.rate * (each.prompt_tokens + each.output_tokens)
            for part, each in zip(now.served, few.demands, strict=True)
        )
        assert sum(more.backlog.done) >= sum(now.backlog.done) * 0.94 - served / 100
        assert more.backlog.load >= now.backlog.load * 0.94


@FAST
@given(rate=st.floats(0.5, 20), tokens=st.floats(100, 50_000))
def test_more_interactive_requests_leave_less_for_batch_work(rate, tokens) -> None:
    backlog = Backlog(tokens, 500.0, 200.0)
    little = problem([("mistral-7b", rate, backlog)])
    much = problem([("mistral-7b", 1.3 * rate, backlog)])
    assert sum(unit_of(much)[2].backlog.done) <= sum(unit_of(little)[2].backlog.done) * 1.04


def test_a_problem_without_batch_work_has_the_plan_that_it_had() -> None:
    asked = problem([("mistral-7b", 3.0, None), ("llama-2-7b", 1.0, None)], 2)
    text = place(asked, time_limit_s=0).to_json()
    assert "backlog" not in text
    assert unit_of(asked)[2].backlog is None
    assert Plan.model_validate_json(text).to_json() == text


def test_a_plan_with_batch_work_can_be_read_again() -> None:
    plan = place(problem([("mistral-7b", 1.0, Backlog(500.0, 100.0, 100.0))]), time_limit_s=0)
    assert Plan.model_validate_json(plan.to_json()) == plan
    assert tokens_of(plan) == {"m0": pytest.approx(500.0)}


def test_batch_work_alone_gets_replicas_on_idle_gpus() -> None:
    """A rate that needs no replica, with batch work of three GPUs."""
    alone = problem([("mistral-7b", 0.5, Backlog(1e9, 500.0, 200.0))])
    most = sum(tokens_of(place(alone, time_limit_s=0)).values())
    wanted = problem([("mistral-7b", 0.5, Backlog(2.5 * most, 500.0, 200.0))], 4)
    plan = place(wanted, time_limit_s=0)
    assert sum(unit.tp for unit in plan.units) >= 3
    assert sum(tokens_of(plan).values()) >= 0.97 * 2.5 * most
    # without batch work a replica there is not worth its memory for so little
    assert place(wanted.without_backlogs(), time_limit_s=0).throughput == pytest.approx(0.5)


def test_compute_heavy_batch_work_fits_well_beside_memory_heavy_requests() -> None:
    """Steps that read weights and KV leave compute: both together are more than one unit's time."""
    heavy = Backlog(1e4, 2000.0, 20.0)

    def load_and_capacity(rate: float) -> tuple[float, float]:
        asked = demand(
            "m", rate=rate, prompt_tokens=20, output_tokens=600, max_seqs=256, backlog=heavy
        )
        estimator, offers, found = unit_of(Problem((asked,), cluster()))
        return found.load, estimator.backlogged(found, A100, offers).capacity()

    _, alone = load_and_capacity(0.001)
    load, beside = load_and_capacity(4.0)
    assert 0.3 < load < 0.7
    assert load + beside / alone > 1.08


def test_under_hybrid_packing_batch_work_is_bound_by_the_targets() -> None:
    backlog = Backlog(1e6, 1500.0, 50.0)
    done = {}
    for packing in ("priority", "hybrid"):
        policy = UnitPolicy(scheduler=SchedulerSpec(packing=packing))
        asked = Problem(
            (demand("m", "llama-2-7b", 0.2, backlog=backlog, ttft_s=0.5, tpot_s=0.06),),
            cluster(),
            policy=policy,
        )
        estimator, offers, found = unit_of(asked)
        done[packing] = sum(found.backlog.done)
        late = estimator.backlogged(found, A100, offers).latencies(done[packing] / 1e6)
        assert (late[0].tpot_s.median <= 0.06) == (packing == "hybrid")
    assert 0 < done["hybrid"] < done["priority"]


def test_the_report_tells_density_capacity_and_what_it_costs() -> None:
    backlog = Backlog(2000.0, 1000.0, 100.0)
    asked = problem([("mistral-7b", 2.0, backlog)])
    plan = place(asked, time_limit_s=0)
    (unit,) = batch_units(asked, plan)
    (model,) = unit.models
    assert (model.asked, model.done) == (pytest.approx(2000.0), pytest.approx(2000.0))
    assert model.tpot_beside_s > model.tpot_s > 0
    # BlendServe's density, from its resource model
    resources = resource_model(asked.demands[0].shape, A100, 1, 2)
    counts = ((2.0, 161.0, 338.0), (backlog.rate, 1000.0, 100.0))
    compute = sum(n * (resources.prefill_s(0.0, p) + resources.decode_s(o)) for n, p, o in counts)
    memory = sum(n * resources.read_s(p, o, o * o) for n, p, o in counts)
    assert unit.density == pytest.approx(compute / memory)
    alone = headroom(asked, plan)
    beside = headroom(asked, plan, beside_batch=True)
    assert 1 <= beside.factor < alone.factor
    assert beside.limit == "batch work"
    # what it could do is done when it is asked, and no more
    more = replace(backlog, tokens_per_s=1.3 * unit.capacity * 2000.0)
    fuller = problem([("mistral-7b", 2.0, more)])
    done = sum(tokens_of(place(fuller, time_limit_s=0)).values())
    assert done == pytest.approx(unit.capacity * 2000.0, rel=0.05)


def test_a_plan_in_force_is_left_where_much_more_batch_work_gets_done() -> None:
    def asked(tokens: float) -> Problem:
        return problem([("mistral-7b", 0.5, Backlog(tokens, 500.0, 200.0))], 2)

    first = place(asked(10.0), time_limit_s=0)
    (unit,) = batch_units(asked(10.0), first)[:1]
    little = asked(0.3 * unit.capacity * 10.0)
    assert [each.gpus for each in place(little, time_limit_s=0, current=first).units] == [
        each.gpus for each in first.units
    ]
    much = asked(1.8 * unit.capacity * 10.0)
    after = place(much, time_limit_s=0, current=first)
    assert len(after.units) == 2
    assert sum(tokens_of(after).values()) == pytest.approx(1.8 * unit.capacity * 10.0, rel=0.05)
