"""What-if plans of a running cluster: what they tell, from the plan in force, and refusals."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from muxcluster.cluster.control.what_if import WhatIfPlanner
from muxcluster.cluster.state.desired import Desired
from muxcluster.cluster.state.fitting import as_found
from muxcluster.cluster.state.what_if import PlanRefusal, plan_told, what_if
from muxcluster.config.load import load_config
from muxcluster.config.planner_input import nodes_of
from muxcluster.config.planning import plan_for
from muxcluster.core.errors import ConfigError

NODES = [{"name": "a", "gpus": 4, "gpu": "A100-80GB"}]
MODELS = [
    {"name": "small", "shape": "llama-7b", "rate": 2.0},
    {"name": "large", "shape": "llama-13b", "rate": 1.0},
]


def desired(tmp_path: Path, *, is_auto: bool = False) -> Desired:
    """A cluster that runs its plan; is_auto: with the nodes that Ray has."""
    file = tmp_path / "muxcluster.yaml"
    file.write_text(yaml.safe_dump({"models": MODELS, "cluster": {"nodes": NODES}}))
    config = load_config(file)
    nodes = nodes_of(config)
    plan = plan_for(config, nodes)
    if is_auto:
        file.write_text(yaml.safe_dump({"models": MODELS, "cluster": {"nodes": "auto"}}))
        config = load_config(file)
    rates = tuple((model.name, model.section.rate) for model in config.models)
    return Desired(config, plan, nodes, (), (), rates=rates)


def planning_processes() -> list[int]:
    """Of this process, by /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == os.getpid() and b"muxcluster.offline.process" in command:
            found.append(int(entry.name))
    return found


def test_the_plan_in_force_is_told(tmp_path: Path) -> None:
    found = desired(tmp_path)
    told = plan_told(found)
    assert told["plan"] == found.plan.model_dump(mode="json")
    assert told["nodes"] == [{"name": "a", "gpus": 4, "gpu": "A100-80GB"}]
    assert told["models"] == [
        {"name": "small", "rate": 2.0, "placed": True},
        {"name": "large", "rate": 1.0, "placed": True},
    ]


@pytest.mark.parametrize("is_auto", [False, True])
def test_changes_are_planned_from_the_plan_in_force(tmp_path: Path, is_auto: bool) -> None:
    found = desired(tmp_path, is_auto=is_auto)
    told = what_if(found, ["rate:small=x3", "add:third,shape=llama-7b,rate=1", "gpus:a=8"])
    assert told["nodes"] == [{"name": "a", "gpus": 8, "gpu": "A100-80GB"}]
    assert {model["name"]: model["rate"] for model in told["models"]} == {
        "small": 6.0,
        "large": 1.0,
        "third": 1.0,
    }
    planned = {model["name"] for unit in told["plan"]["units"] for model in unit["models"]}
    assert planned == {"small", "large", "third"}
    moves = {move["model"]: move for move in told["difference"]["moves"]}
    assert moves["third"]["from"] == [] and moves["third"]["load_bytes"] > 2**33
    assert told["difference"]["throughput"][1] == pytest.approx(8.0, rel=0.05)


def test_nothing_moves_where_nothing_changes(tmp_path: Path) -> None:
    told = what_if(desired(tmp_path), ["rate:small=2"])
    assert told["difference"]["moves"] == [] and told["difference"]["removed"] == []
    assert set(told["difference"]["kept"]) == {"small", "large"}


def test_wrong_changes_are_refused(tmp_path: Path) -> None:
    found = desired(tmp_path)
    with pytest.raises(ConfigError, match=r"^changes rate:smal=2: no model 'smal'.*small"):
        what_if(found, ["rate:smal=2"])
    with pytest.raises(ConfigError, match="changes fly: expected add:NAME"):
        what_if(found, ["fly"])
    with pytest.raises(ConfigError, match=r"changes gpus:b=4: no node 'b'"):
        what_if(found, ["gpus:b=4"])


def test_what_does_not_fit_is_left_out_as_in_the_cluster(tmp_path: Path) -> None:
    changes = [f"add:m{index},shape=llama-65b,rate=0.1" for index in range(9)]
    told = what_if(desired(tmp_path), changes)
    placed = {model["name"]: model["placed"] for model in told["models"]}
    assert placed["small"] and placed["large"] and not all(placed.values())


def test_found_facts_of_nodes_stay(tmp_path: Path) -> None:
    """A node where nothing can share its SMs is planned so."""
    found = desired(tmp_path)
    nodes = as_found(found.nodes, (), {"a"})
    told = what_if(replace(found, nodes=nodes), ["gpus:a=2"])
    executions = [unit["execution"] for unit in told["plan"]["units"]]
    assert told["nodes"][0]["gpus"] == 2
    assert {execution["lane"] for execution in executions} == {"mixed"}


def test_the_controllers_planner_answers_from_a_process(tmp_path: Path) -> None:
    found = desired(tmp_path)

    async def asked() -> list[Any]:
        planner = WhatIfPlanner()
        first = asyncio.create_task(planner.plan(found, ["rate:small=x3"]))
        await asyncio.sleep(0)
        return [
            await planner.plan(found, ["rate:small=x2"]),
            await first,
            await planner.plan(found, ["rate:smal=x2"]),
            await planner.plan(None, []),
            await WhatIfPlanner(limit_s=0.01).plan(found, ["rate:small=x3"]),
        ]

    busy, told, wrong, early, late = asyncio.run(asked())
    assert busy == PlanRefusal("another what-if plan is being made", "rate_limit_exceeded")
    assert told == what_if(found, ["rate:small=x3"]) | {"plan": told["plan"]}
    assert "no model 'smal'" in wrong.message and wrong.code == "invalid_value"
    assert early.code == "model_loading"
    assert late == PlanRefusal("planning takes longer than 0.01 s")
    assert planning_processes() == []
