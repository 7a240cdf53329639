"""The files for `ray up` pass the checks that it makes before it touches a machine or a cloud."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from muxcluster.placement.hardware import gpu_named

ROOT = Path(__file__).resolve().parents[2]
FILES = ("cluster.yaml", "examples/cluster-aws.yaml")


def load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return loaded


@pytest.mark.parametrize("name", FILES)
def test_ray_accepts_it_with_its_defaults(name: str) -> None:
    validate_config(prepare_config(load(name)))


@pytest.mark.parametrize("name", FILES)
def test_both_kinds_of_node_start_ray_with_the_token(name: str) -> None:
    config = load(name)
    assert config["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    head, worker = (config[f"{kind}_start_ray_commands"][-1].split() for kind in ("head", "worker"))
    for words in (head, worker):
        assert {"RAY_AUTH_MODE=token", "start"} <= set(words)
        assert {"GLOO_SOCKET_IFNAME=lo", "NCCL_SOCKET_IFNAME=lo"} <= set(words)
    assert {"--head", "--dashboard-host=127.0.0.1"} <= set(head)
    assert "--address=$RAY_HEAD_IP:6379" in worker


@pytest.mark.parametrize("name", FILES)
def test_a_silent_node_is_dead_within_ten_seconds(name: str) -> None:
    words = load(name)["head_start_ray_commands"][-1].split()
    prefix = "RAY_health_check_"
    settings = dict(word[len(prefix) :].split("=") for word in words if word.startswith(prefix))
    one_check_ms = int(settings["timeout_ms"]) + int(settings["period_ms"])
    assert int(settings["failure_threshold"]) * one_check_ms < 10_000


def test_the_clouds_workers_have_gpus_that_the_planner_knows() -> None:
    config = load("examples/cluster-aws.yaml")
    types = config["available_node_types"]
    head = types[config["head_node_type"]]
    workers = [kind for name, kind in types.items() if name != config["head_node_type"]]
    assert "GPU" not in head["resources"] and head["max_workers"] == 0
    for worker in workers:
        assert worker["resources"]["GPU"] >= 1
        assert gpu_named(worker["labels"]["ray.io/accelerator-type"]).memory_bytes > 0


@pytest.mark.parametrize("driver", ["NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"])
def test_the_planner_knows_what_the_driver_calls_a_gpu(driver: str) -> None:
    """cluster.yaml turns blanks into dashes, as a Ray label allows none."""
    assert gpu_named(driver.replace(" ", "-")) is gpu_named(driver)


def test_the_check_notices_a_wrong_key() -> None:
    config = load("cluster.yaml")
    config["cluster_nam"] = config.pop("cluster_name")
    with pytest.raises(jsonschema.ValidationError):
        validate_config(prepare_config(config))
