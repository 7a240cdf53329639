"""muxcluster over hosts: six tiny models, `up` and `down` as a user calls them."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from muxcluster.demo.models import build_model
from tests.cluster_hosts.hosts import Ended, Host
from tests.cluster_hosts.load import StreamSpec
from tests.cluster_hosts.ray_hosts import GPU, RayHosts

FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "llama-a": "llama",
        "llama-b": "llama",
        "qwen2-c": "qwen2",
        "qwen3-d": "qwen3",
        "opt-e": "opt",
        "mistral-f": "mistral",
    }
)
PORT = 8000
RATE_PER_S = 300.0
"""So much of each model that the planner needs both workers."""
GPUS_IN_USE = 2
"""Of each worker: more units would be more processes than two cores can run."""
UP_TIMEOUT_S = 300.0
SETTLE_TIMEOUT_S = 180.0


class Served:
    """The models and the configuration on every node of `hosts`, where Ray runs."""

    def __init__(self, hosts: RayHosts, folder: Path) -> None:
        self.hosts = hosts
        for seed, (name, family) in enumerate(FAMILIES.items()):
            build_model(folder / "models" / name, family, seed=seed)
        for node in hosts.nodes:
            shutil.copytree(folder / "models", node.home / "models")
        self.write_config({})

    @property
    def url(self) -> str:
        """The ingress on the head."""
        return self.url_of(self.hosts.head)

    def url_of(self, host: Host) -> str:
        """The ingress on a node."""
        return f"http://{host.ip}:{PORT}"

    def write_config(self, rates: Mapping[str, float], **policy: Any) -> None:
        """muxcluster.yaml on the head: rates by model, `RATE_PER_S` each unless given."""
        models = [
            {
                "name": name,
                "path": f"models/{name}",
                "rate": rates.get(name, RATE_PER_S),
                "prompt_tokens": 32,
                "output_tokens": 200,
                "max_model_len": 1024,
                "dtype": "float32",
            }
            for name in FAMILIES
        ]
        nodes = [{"name": host.ip, "gpus": GPUS_IN_USE, "gpu": GPU} for host in self.hosts.workers]
        config = {
            "models": models,
            "cluster": {"nodes": nodes, "engine": "cpu"},
            "policy": {"partition": "none", "num_threads": 1, "kv_gb": 0.25, "replan": "off"}
            | policy,
            "server": {"host": "0.0.0.0", "port": PORT, "restart_limit_s": 120},
        }
        (self.hosts.head.home / "muxcluster.yaml").write_text(yaml.safe_dump(config))

    def muxcluster(self, arguments: str, *, timeout_s: float = 60.0) -> Ended:
        """`muxcluster ARGUMENTS` on the head."""
        return self.hosts.head.run(f"~/venv/bin/muxcluster {arguments}", timeout_s=timeout_s)

    def up(self) -> Ended:
        """`muxcluster up`, which returns when all runs."""
        return self.muxcluster("up muxcluster.yaml --yes", timeout_s=UP_TIMEOUT_S).checked()

    def status(self) -> dict[str, Any]:
        """`muxcluster status`, whatever its exit code says."""
        done = self.muxcluster("status --json")
        assert done.stdout, done.stderr
        state: dict[str, Any] = json.loads(done.stdout)
        return state

    def wait_for_status(self, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the status is as wanted; the status then."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            done = self.muxcluster("status --json")
            # nothing is printed where no ingress or no controller answers yet
            state: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
            if state and is_wanted(state):
                return state
            assert time.monotonic() < deadline, json.dumps(state, indent=1) + done.stderr
            time.sleep(1.0)

    def kill_controller(self) -> None:
        """kill -9 of the controller's process."""
        _kill_actor(self.hosts.head, "ray::Controller")

    def kill_ingress(self, host: Host) -> None:
        """kill -9 of a node's ingress."""
        _kill_actor(host, "ray::ServeReplica:muxcluster:ingress")

    def unit_processes(self) -> dict[str, set[int]]:
        """PIDs of the units' actors on each worker, by its name."""
        return {
            host.name: {
                pid
                for pid, command in host.processes().items()
                if command.startswith("ray::UnitHost")
            }
            for host in self.hosts.workers
        }

    def specs(self, number: int, max_tokens: int, host: Host | None = None) -> list[StreamSpec]:
        """So many greedy streams over all models, the same each time, at one node's ingress."""
        names = list(FAMILIES)
        url = self.url if host is None else self.url_of(host)
        return [
            StreamSpec(
                url=url,
                model=names[index % len(names)],
                prompt=f"Stream {index} says: " + "word " * (index % 11),
                max_tokens=max_tokens,
                seed=1000 + index,
            )
            for index in range(number)
        ]


def _kill_actor(host: Host, title: str) -> None:
    found = [pid for pid, command in host.processes().items() if command.startswith(title)]
    assert len(found) == 1, host.processes()
    os.kill(found[0], signal.SIGKILL)


def nodes_of_model(state: Mapping[str, Any], model: str) -> set[str]:
    """On which nodes healthy units serve it, by a status."""
    return {
        unit["node"]
        for unit in state["units"]
        if unit["healthy"] and model in {each["name"] for each in unit["models"]}
    }


def living_nodes(state: Mapping[str, Any]) -> set[str]:
    """Addresses of the nodes that a status calls alive."""
    return {node["address"] for node in state["nodes"] if node["alive"]}


def unserved(state: Mapping[str, Any], models: Sequence[str] = tuple(FAMILIES)) -> set[str]:
    """Models that no healthy unit serves."""
    return {model for model in models if not nodes_of_model(state, model)}
