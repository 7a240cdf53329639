"""Carrying out a difference leads from the old plan to the new one; nothing else is in it."""

from hypothesis import given
from hypothesis import strategies as st

from muxcluster.placement.hardware import GPUS
from muxcluster.placement.plan import Plan, PlannedModel, PlannedUnit
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.review.difference import difference
from muxcluster.placement.shapes.known import SHAPES

NAMES = ("p", "q", "r", "s")


def plan_of(layout: dict[tuple[int, ...], set[str]], served: float = 1.0) -> Plan:
    """GPUs of node a -> its models."""
    units = tuple(
        PlannedUnit(
            id=f"a-{number}",
            node="a",
            gpus=gpus,
            tp=len(gpus),
            kv_blocks=8,
            models=tuple(
                PlannedModel(
                    name=name,
                    prefill_sm=0.5,
                    decode_sm=0.5,
                    batch=1,
                    quota_blocks=1,
                    throughput=served,
                )
                for name in sorted(names)
            ),
        )
        for number, (gpus, names) in enumerate(layout.items())
        if names
    )
    total = sum(len(unit.models) for unit in units) * served
    return Plan(
        method="greedy",
        objective="throughput",
        score=total,
        throughput=total,
        bound=None,
        solve_seconds=0,
        units=units,
    )


def problem_of(plan: Plan) -> Problem:
    names = sorted({model.name for unit in plan.units for model in unit.models})
    demands = tuple(
        Demand(name, SHAPES["opt-1.3b"], 1.0, 16, 16, max_model_len=64, max_seqs=4)
        for name in names
    )
    return Problem(demands, (Node("a", 4, GPUS["L4"]),))


def homes(plan: Plan) -> set[tuple[str, tuple[int, ...]]]:
    return {(model.name, unit.gpus) for unit in plan.units for model in unit.models}


LAYOUTS = st.one_of(
    st.fixed_dictionaries({(0, 1): st.sets(st.sampled_from(NAMES)), (2,): st.just({"p"})}),
    st.fixed_dictionaries(
        {(gpu,): st.sets(st.sampled_from(NAMES)) for gpu in range(3)} | {(3,): st.just({"q"})}
    ),
)


@given(old=LAYOUTS, new=LAYOUTS)
def test_moves_and_leavings_lead_from_one_to_the_other(old, new) -> None:
    before, after = plan_of(old), plan_of(new)
    found = difference(problem_of(after), before, after)
    now = homes(before)
    now -= {(name, unit.gpus) for name, unit in found.dropped}
    now = {(name, gpus) for name, gpus in now if name not in found.removed}
    loads = {(move.model, move.to.gpus) for move in found.moves}
    assert not loads & now
    assert now | loads == homes(after)
    for name in found.kept:
        assert {at for at in homes(before) if at[0] == name} == {
            at for at in homes(after) if at[0] == name
        }
    meshes = [{unit.gpus for unit in plan.units} for plan in (before, after)]
    assert {unit.gpus for unit in found.closed} == meshes[0] - meshes[1]
    assert {unit.gpus for unit in found.opened} == meshes[1] - meshes[0]


def test_a_plan_differs_not_from_itself() -> None:
    plan = plan_of({(0, 1): {"p", "q"}, (2,): {"p"}})
    found = difference(problem_of(plan), plan, plan)
    assert not found.moves and not found.dropped and not found.opened and not found.closed
    assert found.kept == ("p", "q")
    assert (found.load_bytes, found.losers) == (0, ())


def test_replicas_and_losers() -> None:
    before = plan_of({(0,): {"p"}, (1,): {"q"}}, served=2.0)
    after = plan_of({(0,): {"p"}, (1,): {"p", "q"}}, served=1.0)
    found = difference(problem_of(after), before, after)
    (move,) = found.moves
    assert (move.model, move.is_replica, move.to.gpus) == ("p", True, (1,))
    assert move.load_bytes == 2 * SHAPES["opt-1.3b"].num_params
    (loser,) = found.losers  # p is served 1 twice
    assert (loser.model, loser.before, loser.after) == ("q", 2.0, 1.0)
