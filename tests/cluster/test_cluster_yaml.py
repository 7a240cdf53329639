"""cluster.yaml passes the checks that `ray up` makes before it touches a cloud."""

import copy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture()
def config() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    return loaded


def test_ray_accepts_it_with_its_defaults(config: dict[str, Any]) -> None:
    validate_config(prepare_config(copy.deepcopy(config)))


def test_it_would_start_ray_on_a_head_and_on_gpu_workers(config: dict[str, Any]) -> None:
    types = config["available_node_types"]
    head = types[config["head_node_type"]]
    workers = [kind for name, kind in types.items() if name != config["head_node_type"]]
    assert "GPU" not in head["resources"] and head["max_workers"] == 0
    assert all(kind["resources"]["GPU"] >= 1 for kind in workers)
    assert any("ray start --head" in line for line in config["head_start_ray_commands"])
    assert any("$RAY_HEAD_IP" in line for line in config["worker_start_ray_commands"])


def test_the_check_notices_a_wrong_key(config: dict[str, Any]) -> None:
    config["cluster_nam"] = config.pop("cluster_name")
    with pytest.raises(jsonschema.ValidationError):
        validate_config(prepare_config(config))
