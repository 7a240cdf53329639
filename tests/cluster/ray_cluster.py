"""A real Ray cluster of raylets on this machine, with GPUs that are only declared."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from tests.cluster.conftest import MUXCLUSTER, MarkedProcess

COMMAND_TIMEOUT_S = 900.0
GPU = "A100-80GB"


class RayCluster:
    """A head and workers, each a `ray start --block` of its own; nothing else's Ray is touched.

    environment: more variables of all processes; folder: where commands are run.
    """

    def __init__(
        self,
        head_gpus: int = 0,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._cwd = folder
        self._folder = tempfile.TemporaryDirectory(prefix="mux-", ignore_cleanup_errors=True)
        # Workers find the head by it; commands too, and no other cluster's.
        self.env = MappingProxyType(
            {
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN": secrets.token_hex(32),
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_TMPDIR": self._folder.name,
                **(environment or {}),
            }
        )
        self.nodes: dict[str, MarkedProcess] = {}
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        head = ("--head", f"--port={self.port}", "--include-dashboard=false")
        self._start("head", head_gpus, (*head, f"--temp-dir={self._folder.name}"))

    def add(self, name: str, num_gpus: int) -> None:
        """A worker node; returns when it has joined."""
        self._start(name, num_gpus, (f"--address={self.address}",))

    def _start(self, name: str, num_gpus: int, how: tuple[str, ...]) -> None:
        ray = str(Path(sys.executable).parent / "ray")
        command = (
            *(ray, "start", "--block", *how, "--num-cpus=4", f"--num-gpus={num_gpus}"),
            *(f"--node-name={name}", f"--labels=ray.io/accelerator-type={GPU}"),
            *("--node-ip-address=127.0.0.1", "--object-store-memory=100000000"),
        )
        self.nodes[name] = MarkedProcess(command, self.env, self._cwd)
        self.nodes[name].wait_for("block forever")

    def command(
        self, *arguments: str, code: int = 0, environment: Mapping[str, str] | None = None
    ) -> str:
        """What `muxcluster ARGUMENTS --address ...` prints; fails unless it ends with `code`.

        environment: in the place of that of the cluster's processes.
        """
        done = subprocess.run(
            (*MUXCLUSTER, *arguments, "--address", self.address),
            env={**(environment or {**os.environ, **self.env}), "COLUMNS": "300"},
            cwd=self._cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def status(self) -> dict[str, Any]:
        """What `status --json` says, healthy or not."""
        done = subprocess.run(
            (*MUXCLUSTER, "status", "--json", "--address", self.address),
            env={**os.environ, **self.env},
            cwd=self._cwd,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
        state: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (0 if state["healthy"] else 1)
        return state

    def pids(self, name: str) -> set[int]:
        """Processes of the whole cluster whose command line begins so."""
        found = set()
        for node in self.nodes.values():
            for pid in node.processes():
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(name.encode()):
                    found.add(pid)
        return found

    def kill_raylet(self, name: str) -> None:
        """As if the node lost power: its raylet is killed, and its workers with it."""
        for pid in self.nodes[name].processes():
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"/raylet/raylet" in command.split(b"\0")[0]:
                os.kill(pid, signal.SIGKILL)
        self.nodes.pop(name).process.wait(60.0)

    def close(self) -> None:
        """End every node."""
        for node in reversed(self.nodes.values()):
            if node.process.poll() is None:
                node.stop()
        self._folder.cleanup()


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def write_config(file: Path, model_dirs: dict[str, Path], port: int, **policy: Any) -> Path:
    """A configuration of the tiny models on CPU engines, the head alone listening on `port`."""
    models = [
        {"name": name, "path": str(path), "rate": 1.0, "prompt_tokens": 32, "output_tokens": 32}
        for name, path in model_dirs.items()
    ]
    content = {
        "models": models,
        "cluster": {"engine": "cpu"},
        "policy": {"partition": "none", "kv_gb": 0.05, **policy},
        "server": {"port": port, "ingresses": "head"},
    }
    file.write_text(yaml.safe_dump(content))
    return file
