"""Which steps a change takes, and that a node without the new version stops it before the first."""

from dataclasses import replace
from pathlib import Path

import pytest

from muxcluster import __version__
from muxcluster.cli.server import rollout
from muxcluster.cli.server.rollout import Goal, Running, Step, check_installed, step_lines, steps_to
from muxcluster.cluster.control.watch import misfit
from muxcluster.cluster.ingress.serve_app import ingresses_of
from muxcluster.cluster.state.fitting import desired_of, renewed
from muxcluster.cluster.state.reconcile import Phase
from muxcluster.cluster.units.report import UnitReport
from muxcluster.config.load import load_config
from muxcluster.config.planner_input import nodes_of
from muxcluster.config.planning import plan_for
from muxcluster.core.errors import EngineFailure
from muxcluster.core.inputs.carried import WIRE
from muxcluster.core.inputs.web_url import HttpAddress

OLD = "0.0.1"


@pytest.fixture(scope="module")
def goal(config_file: Path) -> Goal:
    config = load_config(config_file)
    nodes = nodes_of(config)
    return Goal(desired_of(config, plan_for(config, nodes), nodes), ingresses_of(config))


def of_version(goal: Goal, version: str) -> Goal:
    """The same goal as another version of muxcluster has made it."""
    targets = tuple(replace(target, version=version) for target in goal.desired.targets)
    edge = ingresses_of(goal.desired.config)
    settings = replace(edge.settings, version=version)
    changed = replace(edge, settings=settings, version="")
    return Goal(replace(goal.desired, targets=targets), changed)


def test_the_first_start_is_one_step(goal: Goal) -> None:
    assert steps_to(goal, None) == (Step.UNITS,) == steps_to(goal, Running(0, __version__, None))
    assert step_lines((Step.UNITS,), None) == []


def test_what_is_the_same_takes_no_step(goal: Goal) -> None:
    assert steps_to(goal, Running(0, __version__, goal)) == ()


def test_settings_of_the_server_change_the_ingresses_alone(goal: Goal) -> None:
    edge = ingresses_of(goal.desired.config).at(HttpAddress("127.0.0.1", 9))
    assert edge.version != goal.edge.version
    changed = Goal(goal.desired, edge)
    assert steps_to(changed, Running(0, __version__, goal)) == (Step.INGRESSES,)


def test_another_version_changes_all_the_controller_first(goal: Goal) -> None:
    before = of_version(goal, OLD)
    running = Running(0, OLD, before)
    wanted = Goal(renewed(before.desired), goal.edge)
    assert wanted.desired == goal.desired
    steps = steps_to(wanted, running)
    assert steps == (Step.CONTROLLER, Step.INGRESSES, Step.UNITS)
    lines = step_lines(steps, running)
    assert [line[:2] for line in lines] == ["1.", "2.", "3."] and OLD in lines[0]
    old, new = before.desired.targets[0].wanted, wanted.desired.targets[0].wanted
    assert old.mesh == new.mesh and old.key != new.key


def test_a_node_without_the_version_is_named(goal: Goal, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"head": __version__, "late": OLD}
    monkeypatch.setattr(rollout, "installed_versions", lambda: installed)
    check_installed(Running(0, __version__, goal))
    with pytest.raises(EngineFailure, match=f"late has {OLD}"):
        check_installed(Running(0, OLD, goal))
    installed["late"] = __version__
    check_installed(Running(0, OLD, goal))


def test_a_unit_with_older_code_than_wanted_does_not_serve() -> None:
    ready = UnitReport(Phase.READY)
    assert misfit(ready, __version__) is None
    assert misfit(ready, OLD) is None  # installed, and not yet wanted
    assert "install" in str(misfit(replace(ready, version=OLD), __version__))
    assert misfit(replace(ready, wire=WIRE - 1), __version__) is None
    assert "together" in str(misfit(replace(ready, wire=WIRE - 2), __version__))
