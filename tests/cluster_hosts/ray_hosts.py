"""Ray over hosts of namespaces, started as a user does: `ray up` with the repository's own file."""

import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired

from tests.cluster_hosts.closing import Closing
from tests.cluster_hosts.hosts import ROOT, Ended, Host, Network, make_key
from tests.cluster_hosts.redis import Redis

WORKERS = ("worker-1", "worker-2")
GPUS_PER_WORKER = 8
GPU = "A100-80GB"
UP_TIMEOUT_S = 240.0
UP_TRIES = 3
NODES_TIMEOUT_S = 240.0
END_TIMEOUT_S = 60.0
_SOURCE = "~/muxcluster"
_ENVIRONMENT = {
    # Every host runs the packages of this interpreter and the source that `ray up` copied to it.
    "PYTHONPATH": f"{Path.home()}/muxcluster",
    "HF_HUB_OFFLINE": "1",
}
_DRIVER_LABEL = "$(nvidia-smi --query-gpu=name --format=csv,noheader --id=0 | tr ' ' -)"


_ASK_NODES = """
import json
import ray
ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
rows = [
    {"ip": n["NodeManagerAddress"], "labels": n["Labels"], "resources": n["Resources"]}
    for n in ray.nodes() if n["Alive"]
]
print("NODES", json.dumps(rows))
"""


@dataclass(frozen=True, slots=True)
class Node:
    """A node as Ray describes it."""

    ip: str
    labels: Mapping[str, str]
    resources: Mapping[str, float]


class RayHosts(Closing):
    """A head, workers, an operator, from where `ray up` is called, and a stranger with neither
    key nor token. Nothing runs on them yet.

    folder: homes and temporary files of the hosts. has_redis: the head keeps its state in a Redis
    on one more host. Everything ends with the `with` block.
    """

    def __init__(self, folder: Path, *, has_redis: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        public = make_key(folder / "key")
        self.network = Network(folder / "hosts")
        self.head = self._add_node("head", public)
        self.workers = tuple(self._add_node(name, public) for name in WORKERS)
        self.operator = self.network.add("operator", _ENVIRONMENT)
        self._furnish(self.operator)
        self.stranger = self.network.add("stranger", _ENVIRONMENT)
        self._furnish(self.stranger)
        self._redis = Redis(self.network.add("redis", {})) if has_redis else None
        (self.stranger.home / "muxcluster").symlink_to(ROOT)
        shutil.copy(folder / "key", self.operator.home / ".ssh" / "id_ed25519")
        (self.operator.home / "cluster.yaml").write_text(self._cluster_yaml())
        # The operator has no copy but the source itself.
        (self.operator.home / "muxcluster").symlink_to(ROOT)

    @property
    def nodes(self) -> tuple[Host, ...]:
        """The hosts on which Ray runs, the head first."""
        return (self.head, *self.workers)

    @property
    def token(self) -> str:
        """Ray's token, as the operator has it."""
        return (self.operator.home / ".ray" / "auth_token").read_text().strip()

    def make_token(self) -> None:
        """The README's first command, on the operator's host."""
        self.operator.run("~/venv/bin/ray get-auth-token --generate").checked()

    def ray(self, arguments: str, *, timeout_s: float = UP_TIMEOUT_S) -> Ended:
        """`ray ARGUMENTS` in the operator's checkout."""
        return self.operator.run(
            f"cd {ROOT}; ~/venv/bin/ray {arguments}",
            timeout_s=timeout_s,
            environment={"RAY_UP_enable_autoscaler_v2": "0"},
        )

    def up(self) -> Ended:
        """`ray up cluster.yaml`, which returns when the head runs; workers follow."""
        return self.ray("up ~/cluster.yaml -y").checked()

    def up_again(self) -> None:
        """`up` of a head that has come back, again where that fails: Ray gives its own processes
        half a minute, which may be too short while all hosts are busy on the same cores."""
        for _ in range(UP_TRIES - 1):
            with suppress(TimeoutExpired):
                if self.ray("up ~/cluster.yaml -y").returncode == 0:
                    return
        self.up()

    def alive(self) -> dict[str, Node]:
        """The nodes that Ray holds for alive, by address, as a driver on the head sees them."""
        lines = self.python(self.head, _ASK_NODES).checked().stdout.splitlines()
        # Ray adds lines of its own where a node has died.
        (said,) = (line.removeprefix("NODES ") for line in lines if line.startswith("NODES "))
        return {row["ip"]: Node(**row) for row in json.loads(said)}

    def wait_for_nodes(self, hosts: Sequence[Host]) -> None:
        """Wait until these, and no others, are alive in Ray."""
        deadline = time.monotonic() + NODES_TIMEOUT_S
        while (seen := set(self.alive())) != {host.ip for host in hosts}:
            assert time.monotonic() < deadline, f"alive in Ray: {sorted(seen)}"
            time.sleep(0.5)

    def python(
        self,
        host: Host,
        code: str,
        *,
        timeout_s: float = 120.0,
        environment: Mapping[str, str] | None = None,
    ) -> Ended:
        """Run Python code on a host, with what is installed there."""
        (host.home / "asked.py").write_text(code)
        run = "~/venv/bin/python ~/asked.py"
        return host.run(run, timeout_s=timeout_s, environment=environment)

    def processes(self) -> dict[str, dict[int, str]]:
        """What runs on each node, by its name; nodes where nothing runs are left out."""
        found = {host.name: host.processes() for host in self.nodes}
        return {name: running for name, running in found.items() if running}

    def wait_for_no_process(self) -> None:
        """Wait until nothing but sshd runs on any node."""
        deadline = time.monotonic() + END_TIMEOUT_S
        while left := self.processes():
            assert time.monotonic() < deadline, left
            time.sleep(0.5)

    def close(self) -> None:
        """End all hosts."""
        self.network.close()

    def _add_node(self, name: str, public_key: str) -> Host:
        host = self.network.add(name, _ENVIRONMENT, public_key)
        self._furnish(host)
        # What the file would install is there: the packages of this interpreter.
        shutil.copy(ROOT / "pyproject.toml", host.home / ".muxcluster-installed")
        return host

    def _furnish(self, host: Host) -> None:
        (host.home / "venv").symlink_to(Path(sys.prefix).resolve())

    def _cluster_yaml(self) -> str:
        """The repository's file for these hosts: addresses, user, GPUs that are only declared."""
        first, second = (host.ip for host in self.workers)
        changes = {
            "head_ip: 10.0.0.1": f"head_ip: {self.head.ip}",
            "worker_ips: [10.0.0.2, 10.0.0.3]": f"worker_ips: [{first}, {second}]",
            "ssh_user: ubuntu": "ssh_user: root",
            _DRIVER_LABEL: f"{GPU} --num-gpus={GPUS_PER_WORKER}",
        }
        text = (ROOT / "cluster.yaml").read_text()
        if self._redis is not None:
            changes |= self._redis.changes()
        for old, new in changes.items():
            assert text.count(old) == 1, f"cluster.yaml says no longer {old!r} once"
            text = text.replace(old, new)
        return text
