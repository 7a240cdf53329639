"""`up`, `status` and `down` on a real Ray whose GPUs are only declared."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from openai import OpenAI

from tests.cluster.ray_cluster import RayCluster, free_port, write_config
from tests.cluster.rolling.endless import EndlessStreams

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Running:
    """A cluster on which `up` has been run; printed: what that said."""

    cluster: RayCluster
    file: Path
    port: int
    printed: str


@pytest.fixture(scope="module")
def running(
    model_dirs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    port = free_port()
    file = write_config(tmp_path_factory.mktemp("up") / "muxcluster.yaml", model_dirs, port)
    cluster = RayCluster(head_gpus=2)
    try:
        printed = cluster.command("up", str(file), "--dry-run")
        assert "new: opt-c" in printed and not cluster.pids("ray::UnitHost")
        printed = cluster.command("up", str(file), "--yes")
        yield Running(cluster, file, port, printed)
    finally:
        cluster.close()


def test_what_up_starts_answers(running: Running) -> None:
    assert "ready" in running.printed and "3 model(s)" in running.printed
    with OpenAI(base_url=f"http://127.0.0.1:{running.port}/v1", api_key="unused") as client:
        assert {model.id for model in client.models.list()} == {"llama-a", "qwen-b", "opt-c"}
        for model in ("llama-a", "qwen-b", "opt-c"):
            answer = client.completions.create(model=model, prompt="x", max_tokens=4)
            assert answer.usage is not None and answer.usage.completion_tokens > 0


def test_status_tells_where_everything_is(running: Running) -> None:
    state = running.cluster.status()
    assert state["healthy"] and not state["unplaced"] and not state["missing_units"]
    (node,) = state["nodes"]
    assert node["alive"] and node["gpu"] == "A100-80GB" and node["resources"]["GPU"] == 2
    assert {model["name"] for unit in state["units"] for model in unit["models"]} == {
        "llama-a",
        "qwen-b",
        "opt-c",
    }
    for unit in state["units"]:
        assert unit["node"] == node["name"] and unit["phase"] == "ready"
        assert unit["device"] == "cpu" and set(unit["gpus"]) <= {0, 1}
    assert {rate["model"]: rate["planned_per_s"] for rate in state["rates"]} == {
        "llama-a": 1.0,
        "qwen-b": 1.0,
        "opt-c": 1.0,
    }


def test_up_again_changes_nothing(running: Running) -> None:
    units = running.cluster.pids("ray::UnitHost")
    assert "nothing to change" in running.cluster.command("up", str(running.file))
    assert running.cluster.pids("ray::UnitHost") == units


def test_a_bad_file_changes_nothing(running: Running, tmp_path: Path) -> None:
    units = running.cluster.pids("ray::UnitHost")
    for text, said in (
        (running.file.read_text().replace("partition", "partitoin"), "did you mean"),
        (running.file.read_text().replace("engine: cpu", "nodes: [{name: x, gpu: L4}]"), "'x'"),
    ):
        file = tmp_path / "bad.yaml"
        file.write_text(text)
        printed = running.cluster.command("up", str(file), "--yes", code=2)
        assert said in printed and printed.count("\n") == 1
    assert running.cluster.pids("ray::UnitHost") == units


def test_other_settings_of_the_server_cut_no_stream(running: Running) -> None:
    content = yaml.safe_load(running.file.read_text())
    content["server"]["max_queued"] = 300
    running.file.write_text(yaml.safe_dump(content))
    title = "ray::ServeReplica:muxcluster:"
    ingresses, units = running.cluster.pids(title), running.cluster.pids("ray::UnitHost")
    url = f"http://127.0.0.1:{running.port}/v1"
    with EndlessStreams(url, ("llama-a", "qwen-b", "opt-c"), 6, 60) as load:
        load.wait_until_under_way()
        printed = running.cluster.command("up", str(running.file), "--yes")
    assert "step 1. the ingresses" in printed and "step 2." not in printed
    assert load.errors == []
    for seen in load.seen:
        assert {(stream.num_tokens, stream.reason) for stream in seen.streams} == {(60, "length")}
        assert len({stream.text for stream in seen.streams}) == 1
    assert ingresses and ingresses.isdisjoint(running.cluster.pids(title))
    assert running.cluster.pids("ray::UnitHost") == units


def test_down_leaves_no_process_of_ours_and_ray_none(running: Running) -> None:
    units = running.cluster.pids("ray::UnitHost")
    assert units
    running.cluster.command("down", code=2)  # nobody can be asked
    running.cluster.command("down", "--yes")
    assert not running.cluster.pids("ray::UnitHost")
    assert not running.cluster.pids("ray::Controller")
    assert not running.cluster.pids("ray::ServeReplica")
    for pid in units:
        assert not os.path.exists(f"/proc/{pid}")
    running.cluster.command("status", code=1)
    head = running.cluster.nodes["head"]
    family = head.processes()
    head.stop()
    head.assert_gone(family)
