"""`muxcluster status` against the shared server, and the application that `serve deploy` builds."""

import json
import os
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from ray.serve import Application

from muxcluster.cli.main import run
from muxcluster.cluster.ingress import serve_app
from muxcluster.cluster.ingress.serve_app import ServeArgs, app
from muxcluster.cluster.ray.nodes import RayNode
from muxcluster.core.errors import ConfigError, EngineFailure
from tests.cluster.conftest import MUXCLUSTER

NAMES = {"llama-a", "qwen-b", "opt-c"}


def test_status_as_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--url", url, "--json"]) == 0
    state = json.loads(capsys.readouterr().out)
    (unit,) = state["units"]
    assert state["healthy"] and state["ready"] and unit["healthy"]
    assert [node["alive"] for node in state["nodes"]] == [True]
    assert {model["name"] for model in unit["models"]} == NAMES
    quotas = [model["quota_blocks"] for model in unit["models"]]
    assert all(quotas) and sum(quotas) <= unit["num_blocks"]
    assert unit["sm_shares"] and max(unit["sm_shares"]) == 1.0
    assert state["plan"]["method"]


def test_status_as_a_table(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["status", "--url", url]) == 0
    shown = capsys.readouterr().out
    assert "alive" in shown and "healthy" in shown and all(name in shown for name in NAMES)


@pytest.mark.parametrize("form", ["told", "plain"])
def test_status_through_ray(url: str, form: str) -> None:
    with urllib.request.urlopen(f"{url}/status", timeout=60) as answer:
        address = json.load(answer)["ray_address"]
    if form == "plain":
        address = f"127.0.0.1:{address.rpartition(':')[2]}"
    done = subprocess.run(
        (*MUXCLUSTER, "status", "--json", "--address", address),
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "RAY_AUTH_MODE": "token"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["healthy"]


def test_status_without_a_server_fails_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--url", "http://127.0.0.1:9"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_serve_deploy_gets_an_application_from_the_file(config_file: Path) -> None:
    assert isinstance(app(ServeArgs(config=str(config_file))), Application)


def test_the_application_waits_for_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = [2, 4, 6]

    def living() -> list[RayNode]:
        return [RayNode("n", "id", "ip", 1, is_alive=True, num_gpus=joined[0])]

    monkeypatch.setattr(serve_app, "_living", living)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        joined.pop(0)

    serve_app.wait_for_gpus(5, sleep=sleep)
    assert len(waits) == 2
    with pytest.raises(EngineFailure, match="6 of 7 GPUs"):
        serve_app.wait_for_gpus(7, timeout_s=-1.0)


@pytest.mark.parametrize(
    "fields", [{}, {"config": "a", "confg": "b"}, {"config": "a", "wait_for_gpus": -1}]
)
def test_its_arguments_are_checked(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ServeArgs(**fields)
    with pytest.raises(ConfigError, match="nowhere"):
        app(ServeArgs(config="nowhere.yaml"))
