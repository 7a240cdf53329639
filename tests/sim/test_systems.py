"""Systems: names and switches, what each runs on, and that a part taken away costs something."""

import math
from dataclasses import replace

import pytest

from muxcluster.core.job import Phase
from muxcluster.core.unitspec import SchedulerSpec
from muxcluster.placement.execution import UnitPolicy
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.memory import DoesNotFit
from muxcluster.placement.problem import Demand, Limits, Node, Problem
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.scheduling.scheduler import UnitScheduler
from muxcluster.sim.cases.systems import METHODS, SYSTEMS, System, system_named
from muxcluster.sim.cases.systems_units import plan_of, units_for
from muxcluster.sim.core.simulate import simulate
from tests.sim.cases import arrivals

POLICY = UnitPolicy(SchedulerSpec(quota_period_s=2.0, may_unshare=True))


def problem(num_gpus: int = 4, *rates: float) -> Problem:
    """A 30B, a 13B and a 7B model on one node of A100s."""
    shapes = (("large", "llama-30b"), ("middle", "llama-13b"), ("small", "llama-7b"))
    demands = tuple(
        Demand(name, SHAPES[shape], rate, 200.0, 150.0, 2048, 64)
        for (name, shape), rate in zip(shapes, rates or (0.5, 2.0, 6.0), strict=True)
    )
    node = Node("a", num_gpus, GPUS["A100-80GB"])
    return Problem(demands, (node,), Limits(token_budget=1024), policy=POLICY)


def sizes(method: str, asked: Problem) -> dict[str, int]:
    """GPUs by model, where every unit has one."""
    plan = plan_of(method, asked)
    assert all(len(unit.models) == 1 for unit in plan.units)
    return {unit.models[0].name: unit.tp for unit in plan.units}


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_plans_and_serves(name: str) -> None:
    asked, system = problem(), system_named(name)
    units = units_for(system, plan_of(system.method, asked), asked)
    for unit in units:
        may_be = {system.lane} | ({"mixed"} if system.lane == "adbs" else set())
        assert unit.spec.scheduler.lane in may_be
        # only two workers have no SM in common, as collectives of several GPUs must
        assert unit.tp == 1 or len(unit.spec.workers) <= 2
    assert all(unit.spec.scheduler.token_budget == 1024 for unit in units)
    wanted = arrivals(30, 10.0, ("large", "middle", "small"))
    assert simulate(units, wanted).records.is_finished.sum() == 30


def test_switches_change_one_part_each_and_the_name_says_so() -> None:
    whole = system_named("muxserve")
    assert whole == System("muxserve", "greedy", "adbs")
    found = system_named("muxserve:sharing=off:quotas=off:placement=memory-greedy")
    assert (found.method, found.shares_sms, found.lends_blocks) == ("memory-greedy", False, False)
    assert found.name == "muxserve:sharing=off:quotas=off:placement=memory-greedy"
    assert system_named("round-robin:sharing=off").shares_sms is False
    mixed = system_named("muxserve:sharing=mixed")
    assert (mixed.shares_sms, mixed.runs_mixed, mixed.lane) == (False, True, "adbs")
    with pytest.raises(ValueError, match="expected on or off"):
        system_named("round-robin:sharing=mixed")
    assert system_named("muxserve:quotas=on").lends_blocks is True
    assert system_named("temporal:packing=fcfs").packing == "fcfs"


def test_mixed_jobs_in_place_of_sharing_keep_the_quotas() -> None:
    asked = problem()
    units = units_for(system_named("muxserve:sharing=mixed"), plan_of("greedy", asked), asked)
    unit = max(units, key=lambda each: len(each.spec.models))
    assert unit.spec.scheduler.lane == "adbs"
    phases: set[str] = set()
    names = tuple(model.name for model in unit.spec.models)
    simulate([unit], arrivals(30, 10.0, names), on_job=lambda span: phases.add(span.phase))
    assert phases == {"mixed"}
    stats = UnitScheduler(unit.spec, only_counts=True).stats(0.0, "u")
    quotas = [model.quota_blocks for model in stats.models]
    assert 0 < max(quotas) < unit.spec.num_blocks
    assert sum(quotas) <= unit.spec.num_blocks


def test_a_packing_is_the_configured_one_unless_the_system_names_one() -> None:
    asked = problem()
    plan = plan_of("greedy", asked)
    scheduler = replace(POLICY.scheduler, packing="round-robin")
    asked = replace(asked, policy=replace(POLICY, scheduler=scheduler))
    for name, packing in (("muxserve", "round-robin"), ("muxserve:packing=fcfs", "fcfs")):
        units = units_for(system_named(name), plan, asked)
        assert {unit.spec.scheduler.packing for unit in units} == {packing}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("adbs", "muxserve"),
        ("", "muxserve"),
        ("muxserve:speed=on", "placement"),
        ("muxserve:placement=best", "memory-greedy"),
        ("muxserve:sharing=maybe", "on or off"),
        ("muxserve:sharing", "on or off"),
        ("temporal:sharing=off", "never shares"),
        ("temporal:quotas=off", "no quotas"),
        ("temporal:packing=best", "priority, fcfs"),
    ],
)
def test_what_is_not_a_system_is_refused_with_what_there_is(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        system_named(text)


def test_by_size_ignores_rates_and_by_load_follows_them() -> None:
    assert set(METHODS) == {"greedy", "memory-greedy", "spatial", "spatial-load"}
    calm, busy = problem(8, 1.0, 1.0, 1.0), problem(8, 0.01, 0.01, 60.0)
    assert sizes("spatial", calm) == sizes("spatial", busy)
    assert sizes("spatial", busy)["large"] >= sizes("spatial", busy)["small"]
    assert sizes("spatial-load", busy)["small"] > sizes("spatial-load", busy)["large"]


def test_no_mesh_for_everyone_does_not_fit() -> None:
    with pytest.raises(DoesNotFit):
        plan_of("spatial", problem(2))
    with pytest.raises(DoesNotFit):
        plan_of("spatial-load", problem(2))


def test_without_sharing_every_job_has_all_sms() -> None:
    asked = problem()
    system = system_named("muxserve:sharing=off")
    units = units_for(system, plan_of("greedy", asked), asked)
    assert {share for u in units for w in u.spec.workers for share in w.shares} == {1.0}
    phases = {phase for u in units for w in u.spec.workers for phase in w.phases}
    assert {Phase.PREFILL, Phase.DECODE} <= phases


def test_without_lending_quotas_stay_where_the_plan_put_them() -> None:
    asked = problem(1, 0.01, 1.0, 1.0)
    asked = replace(asked, demands=asked.demands[1:])
    plan = plan_of("greedy", asked)
    fixed, moving = (
        units_for(system_named(name), plan, asked)[0].spec
        for name in ("muxserve:quotas=off", "muxserve")
    )
    assert fixed.scheduler.quota_period_s == math.inf
    assert moving.scheduler.quota_period_s == 2.0
    scheduler = UnitScheduler(fixed, only_counts=True)
    before = {m.name: m.quota_blocks for m in scheduler.stats(0.0, "u").models}
    assert 0 < min(before.values()) < max(before.values()) < fixed.num_blocks
    scheduler.next_jobs(0.0)
    scheduler.next_jobs(1e6)
    assert {m.name: m.quota_blocks for m in scheduler.stats(1e6, "u").models} == before


def test_taking_sharing_away_costs_time_where_models_share_a_gpu() -> None:
    asked = replace(problem(1), demands=problem().demands[1:])
    plan = plan_of("greedy", asked)
    wanted = arrivals(150, 12.0, ("middle", "small"))

    def mean_latency(name: str) -> float:
        units = units_for(system_named(name), plan, asked)
        rows = simulate(units, wanted).records.rows
        return float((rows["last_token_s"] - rows["arrival_s"]).mean())

    assert mean_latency("muxserve") < mean_latency("muxserve:sharing=off")
