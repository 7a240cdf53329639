"""Pure parts of the controller: nodes, what fits on what is left, rates, directories, keys."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from muxcluster.cluster.control.replanner import Replanner
from muxcluster.cluster.ray.nodes import nodes_from, planning_nodes, remaining_nodes
from muxcluster.cluster.state.desired import Desired, Record, key_of
from muxcluster.cluster.state.fitting import (
    as_found,
    at_backlogs,
    at_rates,
    backlogs_of,
    desired_of,
    plan_what_fits,
    without,
)
from muxcluster.cluster.state.rates import (
    LEAST_TOKENS_PER_S,
    MeasuredBacklogs,
    RateWatch,
    is_off,
    to_plan_for,
)
from muxcluster.config.load import Config, load_config
from muxcluster.config.planning import plan_for
from muxcluster.config.schema import BacklogSection
from muxcluster.core.errors import ConfigError, InfeasiblePlan
from muxcluster.placement.hardware import WHOLE, cpu, gpu_named
from muxcluster.placement.problem import Node

GIB = 2**30


def _config(model_dirs: dict[str, Path], tmp_path: Path, **sections: Any) -> Config:
    models = [
        {"name": name, "path": str(path), "rate": 1.0 + index, "max_seqs": 4}
        for index, (name, path) in enumerate(model_dirs.items())
    ]
    file = tmp_path / "muxcluster.yaml"
    file.write_text(yaml.safe_dump({"models": models, **sections}))
    return load_config(file)


def _report(name: str, node_id: str, gpus: int = 0, **fields: Any) -> dict[str, Any]:
    """A node in the form that Ray 2.60 reports it."""
    resources = {"CPU": 4.0, "memory": 8.0 * GIB, "node:10.0.0.1": 1.0}
    return {
        "NodeName": name,
        "NodeID": node_id,
        "Alive": True,
        "NodeManagerAddress": "10.0.0.1",
        "NodeManagerPort": 1234,
        "Resources": {**resources, "GPU": float(gpus)} if gpus else resources,
        "Labels": {"ray.io/accelerator-type": "A100-80GB"} if gpus else {},
        **fields,
    }


def test_nodes_with_gpus_are_planned_on_and_others_only_where_there_are_no_gpus(
    model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    config = _config(model_dirs, tmp_path)
    head, worker = _report("head", "a" * 8), _report("w", "b" * 8, gpus=8)
    assert planning_nodes(config, nodes_from([head, worker])) == (
        Node("w", 8, gpu_named("A100-80GB")),
    )
    assert planning_nodes(config, nodes_from([head])) == (Node("head", 1, cpu(4, 8 * GIB)),)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"Labels": {}}, "does not say what GPUs node w has"),
        ({"Labels": {"ray.io/accelerator-type": "A100"}}, "node w: unknown GPU 'A100'"),
    ],
)
def test_gpus_of_an_unknown_kind_are_refused_by_name_or_left_out_later(
    model_dirs: dict[str, Path], tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    config = _config(model_dirs, tmp_path)
    known, unknown = _report("v", "a" * 8, gpus=2), _report("w", "b" * 8, gpus=2, **fields)
    found = nodes_from([known, unknown])
    with pytest.raises(ConfigError, match=said):
        planning_nodes(config, found)
    assert [node.name for node in remaining_nodes(config, found, needs_gpus=True)] == ["v"]


def test_where_all_gpus_are_lost_the_cores_of_the_head_do_not_take_their_place(
    model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    config = _config(model_dirs, tmp_path, cluster={"engine": "cpu"})
    head = nodes_from([_report("head", "a" * 8)])
    assert remaining_nodes(config, head, needs_gpus=True) == ()
    assert [node.name for node in remaining_nodes(config, head, needs_gpus=False)] == ["head"]
    desired = desired_of(config, plan_for(config, _nodes("a")), _nodes("a"))
    replanner = Replanner(follows_rates=True)
    replanner.reset(desired)
    lost = _next(replanner, desired, ())
    assert desired.needs_gpus and lost is not None and lost.needs_gpus


def test_listed_nodes_have_to_be_there_with_their_gpus(
    model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    listed = {"nodes": [{"name": "w", "gpus": 4, "gpu": "A100-80GB"}]}
    config = _config(model_dirs, tmp_path, cluster=listed)
    (node,) = planning_nodes(config, nodes_from([_report("w", "b" * 8, gpus=8)]))
    assert (node.name, node.num_gpus) == ("w", 4)
    for there, said in (
        ([_report("x", "b" * 8, gpus=8)], "no living node 'w'"),
        ([_report("w", "b" * 8, gpus=2)], "Ray has 2"),
    ):
        with pytest.raises(ConfigError, match=said):
            planning_nodes(config, nodes_from(there))
    other = nodes_from([_report("x", "b" * 8, gpus=8)])
    assert remaining_nodes(config, other, needs_gpus=True) == ()


def test_raylets_of_one_name_are_told_apart() -> None:
    found = nodes_from([_report("10.0.0.1", "a" * 8), _report("10.0.0.1", "b" * 8)])
    assert [node.name for node in found] == ["10.0.0.1-aaaaaa", "10.0.0.1-bbbbbb"]
    dead = _report("10.0.0.1", "a" * 8, Alive=False)
    assert nodes_from([dead, _report("10.0.0.1", "b" * 8)])[1].name == "10.0.0.1"


def test_where_not_all_models_fit_the_worthiest_do(
    model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    config = _config(model_dirs, tmp_path)
    names = [model.name for model in config.models]  # rates 1, 2, 3
    plenty = (Node("n", 1, cpu(2, 4 * GIB)),)
    assert plan_what_fits(config, plenty)[1] == ()
    ever_dropped: set[str] = set()
    for mib in range(400, 0, -20):
        nodes = (Node("n", 1, cpu(2, mib * 2**20)),)
        plan, dropped = plan_what_fits(config, nodes)
        served = {model.name for unit in plan.units for model in unit.models}
        assert served == set(names) - set(dropped)
        ever_dropped |= set(dropped)
        for name in dropped:
            worthier = served & set(names[names.index(name) :])
            with pytest.raises(InfeasiblePlan):
                plan_for(without(config, set(names) - worthier - {name}), nodes)
    assert ever_dropped == set(names)
    plan, dropped = plan_what_fits(config, ())
    assert plan.units == () and dropped == tuple(sorted(names))


def _desired(config: Config) -> Desired:
    nodes = (Node("n", 2, gpu_named("A100-80GB")),)
    return desired_of(config, plan_for(config, nodes), nodes)


def test_expectations_need_no_restart_and_what_a_unit_is_built_from_does(
    model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    config = _config(model_dirs, tmp_path, cluster={"engine": "cpu"})
    target, *_ = _desired(config).targets
    spec = target.spec
    assert spec.device == "cpu" and target.num_gpus == target.planned.tp
    faster = tuple(replace(model, rate_per_s=9.0) for model in spec.models)
    assert key_of(replace(spec, unit_id="other", models=faster)) == key_of(spec)
    for changed in (
        replace(spec, num_blocks=spec.num_blocks + 1),
        replace(spec, models=spec.models[:-1]),
        replace(spec, models=tuple(replace(m, seed=7) for m in spec.models)),
    ):
        assert key_of(changed) != key_of(spec)


def test_rates_are_part_of_what_is_kept(model_dirs: dict[str, Path], tmp_path: Path) -> None:
    config = _config(model_dirs, tmp_path, cluster={"engine": "cpu"})
    name = config.models[0].name
    desired = _desired(config)
    assert dict(desired.rates)[name] == 1.0
    changed = at_rates(config, {name: 5.0})
    assert changed.models[0].section.rate == 5.0 and changed.models[1:] == config.models[1:]
    again = desired_of(config, desired.plan, desired.nodes, (), {name: 5.0})
    assert dict(again.rates)[name] == 5.0 and again.config is config


def test_a_rate_is_off_where_it_is_half_as_much_again_and_not_by_noise() -> None:
    assert not is_off(1.0, 1.4) and is_off(1.0, 1.6) and is_off(1.0, 0.6)
    assert not is_off(0.01, 0.04) and not is_off(0.0, 0.0)
    assert to_plan_for(2.0, 0.0) == pytest.approx(0.2) and to_plan_for(2.0, 5.0) == 5.0


def test_only_a_lasting_change_is_answered_and_not_twice_in_a_period() -> None:
    watch = RateWatch(10.0)
    planned, measured = {"m": 1.0}, {"m": 3.0}
    assert not watch.look(planned, measured, 0.0) and not watch.look(planned, measured, 9.0)
    assert not watch.look(planned, {"m": 1.0}, 9.5)  # it passed
    assert not watch.look(planned, measured, 10.0) and not watch.look(planned, measured, 19.0)
    assert watch.look(planned, measured, 20.0)
    assert not watch.look(planned, measured, 21.0) and not watch.look(planned, measured, 29.0)
    assert watch.look(planned, measured, 31.0)


def _nodes(*names: str) -> tuple[Node, ...]:
    return tuple(Node(name, 2, gpu_named("A100-80GB")) for name in names)


def _next(
    replanner: Replanner,
    desired: Desired,
    nodes: tuple[Node, ...],
    backlogs: dict[str, float] | None = None,
    **measured: float,
) -> Desired | None:
    names = {node.name for node in nodes}
    records = [
        Record(f"{index}", target.planned.node, target)
        for index, target in enumerate(desired.targets)
        if target.planned.node in names
    ]
    return asyncio.run(replanner.next(desired, nodes, records, measured, backlogs or {}))


def test_a_lost_node_leads_to_a_plan_for_the_others_and_what_stays_is_not_moved(
    model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    config = _config(model_dirs, tmp_path, cluster={"engine": "cpu"})
    both = _nodes("a", "b")
    desired = desired_of(config, plan_for(config, both), both)
    replanner = Replanner(follows_rates=True)
    replanner.reset(desired)
    assert _next(replanner, desired, both) is None
    found = _next(replanner, desired, _nodes("a"))
    assert found is not None and found.unplaced == () and found.nodes == _nodes("a")
    assert {target.planned.node for target in found.targets} == {"a"}
    assert {m for target in found.targets for m in target.wanted.models} == set(model_dirs)
    again = _next(replanner, found, both)
    assert again is not None and again.nodes == both and again.unplaced == ()


def test_without_any_node_nothing_is_placed_until_one_comes(
    model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    config = _config(model_dirs, tmp_path, cluster={"engine": "cpu"})
    desired = desired_of(config, plan_for(config, _nodes("a")), _nodes("a"))
    replanner = Replanner(follows_rates=True)
    replanner.reset(desired)
    lost = _next(replanner, desired, ())
    assert lost is not None and lost.targets == ()
    assert lost.unplaced == tuple(sorted(model_dirs))
    assert [model.name for model in lost.models] == list(model_dirs)
    back = _next(replanner, lost, _nodes("a"))
    assert back is not None and back.unplaced == () and back.targets


def test_rates_lead_to_a_plan_only_where_that_is_wanted(
    model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    name, *_ = model_dirs
    for policy, follows, is_planned in (
        ("auto", True, True),
        ("off", True, False),
        ("auto", False, False),
    ):
        config = _config(
            model_dirs,
            tmp_path,
            cluster={"engine": "cpu"},
            policy={"replan": policy, "replan_period_s": 1e-9},
        )
        desired = desired_of(config, plan_for(config, _nodes("a")), _nodes("a"))
        replanner = Replanner(follows_rates=follows)
        replanner.reset(desired)
        rates = {model: 1.0 + index for index, model in enumerate(model_dirs)}
        assert _next(replanner, desired, _nodes("a"), **rates) is None
        for _ in range(2):  # seen first, then lasting
            found = _next(replanner, desired, _nodes("a"), **{**rates, name: 30.0})
        assert (found is not None) is is_planned
        if found is not None:
            assert dict(found.rates)[name] == 30.0


def test_batch_work_that_waits_leads_to_a_plan_with_replicas_and_is_answered_once(
    model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    """Half of all memory is one unit's: without batch work, one unit is enough."""
    name, *_ = model_dirs
    config = _config(
        model_dirs,
        tmp_path,
        cluster={"engine": "cpu"},
        policy={"replan_period_s": 1e-9},
    )
    nodes = _nodes("a")
    desired = desired_of(config, plan_for(config, nodes), nodes)
    assert desired.backlogs == ()
    replanner = Replanner(follows_rates=True)
    replanner.reset(desired)
    rates = {model: 1.0 + index for index, model in enumerate(model_dirs)}
    few, many = {name: LEAST_TOKENS_PER_S / 2}, {name: 1e6}
    for backlogs in (few, few, many):  # noise, and what is seen for the first time
        assert _next(replanner, desired, nodes, backlogs, **rates) is None
    found = _next(replanner, desired, nodes, many, **rates)
    assert found is not None and dict(found.backlogs) == {name: pytest.approx(1e6)}
    assert dict(found.rates) == dict(desired.rates) and found.config is config
    done = [
        model.backlog_tokens_per_s
        for unit in found.plan.units
        for model in unit.models
        if model.name == name
    ]
    assert sum(tokens or 0.0 for tokens in done) > 0
    for _ in range(3):
        assert _next(replanner, found, nodes, {name: 0.9e6}, **rates) is None
    # it is done: the plan is for what is configured again, which is none
    for _ in range(2):
        last = _next(replanner, found, nodes, **rates)
    assert last is not None and last.backlogs == ()


def test_configured_batch_work_is_planned_for_though_none_waits(
    model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    config = _config(
        model_dirs, tmp_path, cluster={"engine": "cpu"}, policy={"replan_period_s": 1e-9}
    )
    name = config.models[1].name
    wanted = at_backlogs(config, {name: 500.0})
    batch = wanted.models[1].section.batch
    assert batch is not None and batch.tokens_per_s == pytest.approx(500.0)
    assert wanted.models[0] is config.models[0]
    nodes = _nodes("a")
    desired = desired_of(wanted, plan_for(wanted, nodes), nodes)
    assert dict(desired.backlogs) == {name: pytest.approx(500.0)}
    replanner = Replanner(follows_rates=True)
    replanner.reset(desired)
    rates = {model: 1.0 + index for index, model in enumerate(model_dirs)}
    for waiting in ({}, {name: 600.0}, {}, {name: 100.0}):
        assert _next(replanner, desired, nodes, waiting, **rates) is None


def test_measured_batch_work_replaces_a_queue_and_its_deadline(
    model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    config = _config(model_dirs, tmp_path)
    first = config.models[0]
    queue = BacklogSection(queue_tokens=7200.0, due_s=3600.0, prompt_tokens=9.0)
    queued = replace(first, section=first.section.model_copy(update={"batch": queue}))
    config = replace(config, models=(queued, *config.models[1:]))
    assert backlogs_of(config) == {first.name: 2.0}
    found = at_backlogs(config, {first.name: 5.0}).models[0].section.batch
    # what a file may say: a stored configuration is read again
    again = BacklogSection.model_validate(found.model_dump())
    assert (again.tokens_per_s, again.prompt_tokens) == (pytest.approx(5.0), 9.0)


def test_batch_work_that_nobody_tells_of_any_more_is_forgotten() -> None:
    found = MeasuredBacklogs()
    assert found.now(0.0) == {}
    found.note({"m": 7.0}, 10.0)
    assert found.now(60.0) == {"m": 7.0}
    assert found.now(1000.0) == {}


def test_an_idle_model_is_planned_for_little_once(
    model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    sections = {"cluster": {"engine": "cpu"}, "policy": {"replan_period_s": 1e-9}}
    config = _config(model_dirs, tmp_path, **sections)
    desired = desired_of(config, plan_for(config, _nodes("a")), _nodes("a"))
    replanner = Replanner(follows_rates=True)
    replanner.reset(desired)
    idle = dict.fromkeys(model_dirs, 0.0) | {"removed": 7.0}
    assert _next(replanner, desired, _nodes("a"), **idle) is None
    found = _next(replanner, desired, _nodes("a"), **idle)
    assert found is not None and all(rate > 0 for _, rate in found.rates)
    assert [target.wanted for target in found.targets] == [t.wanted for t in desired.targets]
    for _ in range(3):
        assert _next(replanner, found, _nodes("a"), **idle) is None


def test_a_node_that_cannot_share_sms_is_planned_for_as_it_is(
    model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    """Its units found no MPS daemon: the new plan has one worker there, and keeps to it."""
    policy = {"replan": "off", "sharing": "always"}
    config = _config(model_dirs, tmp_path, policy=policy)
    nodes = (Node("v", 1, gpu_named("A100-80GB")),)
    desired = desired_of(config, plan_for(config, nodes), nodes, (), {})
    (target,) = desired.targets
    assert (target.spec.scheduler.lane, len(target.spec.workers)) == ("adbs", 3)
    limited = as_found(nodes, desired.nodes, {"v"})
    assert limited[0].gpu.shares == WHOLE
    replanner = Replanner(follows_rates=False)
    replanner.reset(desired)
    found = asyncio.run(replanner.next(desired, limited, [], {}, {}))
    assert found is not None
    (target,) = found.targets
    assert (target.spec.scheduler.lane, len(target.spec.workers)) == ("mixed", 1)
    assert target.spec.num_blocks > desired.targets[0].spec.num_blocks  # fewer processes
    # A later look at the same nodes says the same, though Ray knows nothing of it.
    assert as_found(nodes, found.nodes, ()) == found.nodes == limited
    assert asyncio.run(replanner.next(found, as_found(nodes, found.nodes, ()), [], {}, {})) is None
