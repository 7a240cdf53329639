"""`muxcluster place --method compat`: where it finds the published profile, what it prints."""

from pathlib import Path

import pytest

from muxcluster.placement.plan import Plan
from tests.cli.calls import call, refusal

CONFIG = """
models:
  - {name: first, shape: llama-7b, rate: 4}
  - {name: second, shape: llama-13b, rate: 1}
cluster: {nodes: [{name: a, gpus: 2, gpu: A100-80GB}]}
"""


@pytest.fixture
def config(tmp_path, monkeypatch) -> Path:
    """A file that compat can plan, in a folder without data around it."""
    monkeypatch.delenv("MUXCLUSTER_DATA", raising=False)
    folder = tmp_path / "here" / "below"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    path = folder / "muxcluster.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def curves(data_dir) -> Path:
    """The published profile."""
    return data_dir / "muxserve" / "llama_a100_profile.json"


def planned(capsys, *arguments: str) -> Plan:
    code, out, err = call(capsys, "place", *arguments, "--method", "compat", "--json")
    assert (code, err) == (0, "")
    return Plan.model_validate_json(out)


def test_the_plan_alone_with_score_f(capsys, config, curves) -> None:
    plan = planned(capsys, str(config), "--profile", str(curves))
    assert plan.method == "compat"
    assert {model.name for unit in plan.units for model in unit.models} == {"first", "second"}
    assert 0 < plan.score <= plan.bound


def test_the_profile_is_found_in_four_places(capsys, config, curves, monkeypatch) -> None:
    score = planned(capsys, str(config), "--profile", str(curves)).score
    monkeypatch.setenv("MUXCLUSTER_DATA", str(curves.parent.parent))
    assert planned(capsys, str(config)).score == score
    monkeypatch.delenv("MUXCLUSTER_DATA")
    shared = config.parent.parent / "shared" / "data" / "muxserve"
    shared.mkdir(parents=True)
    (shared / curves.name).symlink_to(curves)
    assert planned(capsys, str(config)).score == score
    config.write_text(CONFIG.replace("nodes:", f"profiles: [{curves}], nodes:"))
    (shared / curves.name).unlink()
    assert planned(capsys, str(config)).score == score


def test_it_says_where_it_looked(capsys, config, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("MUXCLUSTER_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("muxcluster.__file__", str(tmp_path / "lib" / "muxcluster" / "__init__.py"))
    err = refusal(capsys, "place", str(config), "--method", "compat")
    for folder in (tmp_path / "data", config.parent / ".." / "shared", tmp_path / "lib"):
        assert str(folder) in err
    assert "--profile FILE" in err


def test_the_table_says_whose_numbers_they_are(capsys, config, curves) -> None:
    code, out, _ = call(
        capsys, "place", str(config), "--method", "compat", "--profile", str(curves)
    )
    assert code == 0
    assert "load and latencies by our estimator" in out
    assert "this one has as much" in out


def test_another_profile_or_model_is_refused(capsys, config, curves, tmp_path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"gpu": "A100-80GB", "itemsize": 2, "machine": "m", "models": []}')
    err = refusal(capsys, "place", str(config), "--method", "compat", "--profile", str(other))
    assert "MuxServe's published table" in err
    config.write_text(CONFIG.replace("llama-13b", "mistral-7b"))
    err = refusal(capsys, "place", str(config), "--method", "compat", "--profile", str(curves))
    assert f"{config}: method compat: " in err
    assert "second" in err
