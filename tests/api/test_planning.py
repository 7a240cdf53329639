"""Planning and simulating from Python: the same answers as the command line, and clear errors."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from muxcluster import ConfigError, InfeasiblePlan, Plan, load_config, plan, simulate
from muxcluster.cli.main import run
from tests.conftest import ROOT

SMALL = ROOT / "examples" / "small.yaml"


def without_time(text: str) -> dict[str, object]:
    found = json.loads(text)
    del found["solve_seconds"]
    return dict(found)


@pytest.mark.parametrize("objective", ["throughput", "fewest-gpus"])
def test_a_plan_is_that_of_the_command(
    objective: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = plan(load_config(SMALL), objective=objective)  # type: ignore[arg-type]
    assert run(["place", str(SMALL), "--objective", objective, "--json"]) == 0
    assert without_time(found.to_json()) == without_time(capsys.readouterr().out)
    kept = tmp_path / "plan.json"
    kept.write_text(found.to_json())
    assert Plan.read(kept) == found


def test_reports_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    reports = simulate(load_config(SMALL), duration_s=10, rate_scale=2)
    words = ["--duration", "10", "--rate-scale", "2", "--systems", "muxserve,temporal"]
    assert run(["simulate", str(SMALL), *words, "--processes", "1", "--json"]) == 0
    cases = json.loads(capsys.readouterr().out)["cases"]
    for report, case in zip(reports, cases, strict=True):
        ours = report.model_dump(mode="json")
        assert ours | {"wall_s": 0} == case | {"wall_s": 0}


def test_a_current_plan_is_kept_and_a_given_one_simulated() -> None:
    config = load_config(SMALL)
    first = plan(config, method="memory-greedy", time_limit_s=0)
    again = plan(config, current=first, time_limit_s=0)
    assert {unit.id for unit in again.units} <= {unit.id for unit in first.units}
    (report,) = simulate(config, systems=["muxserve"], plan=first, duration_s=5)
    assert [line.partition(" ")[0] for line in report.units] == [unit.id for unit in first.units]


def test_values_are_frozen() -> None:
    found = plan(load_config(SMALL), time_limit_s=0)
    with pytest.raises(ValidationError, match="frozen"):
        found.score = 1.0  # type: ignore[misc]


def test_what_cannot_be_planned_is_said(tmp_path: Path) -> None:
    config = load_config(SMALL)
    large = tmp_path / "large.yaml"
    large.write_text(
        "models: [{name: m, shape: llama-65b}]\n"
        "cluster: {nodes: [{name: a, gpus: 1, gpu: A100-40GB}]}\n"
    )
    with pytest.raises(InfeasiblePlan, match=r"models\[0\]: m does not fit"):
        plan(load_config(large))
    with pytest.raises(InfeasiblePlan, match="system spatial: .* does not fit"):
        simulate(config, systems=["spatial"], duration_s=1)
    with pytest.raises(ConfigError, match="no model 'chat-8b', nor any other of the plan"):
        plan(load_config(large), current=plan(config, time_limit_s=0))
    with pytest.raises(ConfigError, match=r"plan: units\[0\].*no model"):
        simulate(load_config(large), plan=plan(config, time_limit_s=0))
    with pytest.raises(ConfigError, match="no such file"):
        simulate(config, trace=tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "gready"}, "no method 'gready'; did you mean greedy"),
        ({"objective": "good"}, "did you mean goodput"),
        ({"method": "spatial", "current": True}, "current needs"),
    ],
)
def test_wrong_arguments_of_plan(arguments: dict[str, object], message: str) -> None:
    config = load_config(SMALL)
    if "current" in arguments:
        arguments = {**arguments, "current": plan(config, time_limit_s=0)}
    with pytest.raises(ValueError, match=message):
        plan(config, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"systems": ["muxserv"]}, "no system 'muxserv'"),
        ({"systems": "muxserve"}, "expected a list of names"),
        ({"systems": []}, "expected a list of names"),
        ({"duration_s": 0}, "duration_s 0"),
        ({"rate_scale": float("nan")}, "rate_scale nan"),
    ],
)
def test_wrong_arguments_of_simulate(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(load_config(SMALL), **arguments)  # type: ignore[arg-type]
