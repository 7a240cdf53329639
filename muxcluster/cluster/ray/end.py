"""Stop Ray on all nodes: with the local provider, Ray's `down` leaves the workers' raylets."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from muxcluster.cluster.ray.nodes import RayNode, ray_nodes

_WAIT_S = 15.0
_RAYLET = b"raylet"
_SESSION = b"--session-name="
_LOG_MONITOR = b"/log_monitor.py"


def end_raylet() -> None:
    """Send SIGTERM to the raylet of this process, which ends its workers, then itself, and to the
    log monitor beside it, which would wait for the head for minutes."""
    raylet = _raylet_pid()
    for pid in [*_monitors_beside(raylet), raylet]:
        os.kill(pid, signal.SIGTERM)


def _raylet_pid() -> int:
    pid = os.getpid()
    while pid > 1:
        pid = _parent(pid)
        if _RAYLET in _command(pid)[0]:
            return pid
    raise RuntimeError("no raylet is above this process")


def _monitors_beside(raylet: int) -> Iterator[int]:
    """Yield the raylet's log monitors: `ray start` gave them its parent and session folder."""
    sessions = [word for word in _command(raylet) if word.startswith(_SESSION)]
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if entry.isdigit() and _parent(int(entry)) == _parent(raylet):
                words = _command(int(entry))
                is_monitor = any(word.endswith(_LOG_MONITOR) for word in words)
                if is_monitor and any(_is_in(word, sessions) for word in words):
                    yield int(entry)


def _is_in(word: bytes, sessions: Sequence[bytes]) -> bool:
    return any(name.partition(b"=")[2] in word for name in sessions)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _command(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def stop_ray() -> Iterator[str]:
    """Stop the raylets of all nodes but the head's, which a connected process cannot outlive.

    Yields a line per node, and what is left to do.
    """
    living = [node for node in ray_nodes() if node.is_alive]
    workers = [node for node in living if not node.is_head]
    for node in workers:
        _send_end(node)
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        left = {node.node_id for node in ray_nodes() if node.is_alive and not node.is_head}
        if not left:
            break
        time.sleep(0.5)
    alive = {node.node_id for node in ray_nodes() if node.is_alive}
    for node in workers:
        state = "still there: log in and `ray stop`" if node.node_id in alive else "stopped"
        yield f"Ray on {node.name}: {state}"
    yield "Ray on the head goes with `ray stop` there, or `ray down cluster.yaml`"


def _send_end(node: RayNode) -> None:
    """Run a task on that node that ends its raylet; the task cannot answer."""
    task: Any = ray.remote(end_raylet)
    options = {"num_cpus": 0, "max_retries": 0, "label_selector": {"ray.io/node-id": node.node_id}}
    try:
        ray.get(task.options(**options).remote(), timeout=10.0)
    except (RayError, TimeoutError):
        return
