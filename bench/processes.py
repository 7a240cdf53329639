"""Processor time of a process tree by kind of process."""

import os
import re
import time
from pathlib import Path

from muxcluster.engine.processes.executor import SETTLED_S

_POLL_S = 2.0
_IDLE_S = 0.1  # processor seconds within _POLL_S
_MOST_SETTLING_S = 60.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_seconds(root: int) -> dict[str, float]:
    """Seconds of processor time so far of `root`'s descendants, summed by name.

    Names: `ingress`, the units' ids, `workers` (their children), `client` and `other` (Ray's own
    processes).
    """
    stats = _stats()
    used: dict[str, float] = {}
    for pid in _family(root, stats):
        fields = stats.get(pid)
        if fields:
            name = _name(pid)
            seconds = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
            used[name] = used.get(name, 0.0) + seconds
    return used


def settle() -> None:
    """Wait until the units that this process has just started have made their spare owners.

    That takes seconds of a processor, once in a unit's life, some ten seconds after its start: what
    is measured meanwhile is something else.
    """
    time.sleep(SETTLED_S)
    give_up_s = time.monotonic() + _MOST_SETTLING_S
    while time.monotonic() < give_up_s:
        before_s = _engine_seconds()
        time.sleep(_POLL_S)
        if _engine_seconds() - before_s < _IDLE_S:
            return


def descendants(root: int) -> set[int]:
    """Return the processes that `root` made, and itself."""
    return _family(root, _stats())


def _engine_seconds() -> float:
    """Processor seconds of this process's workers and owners; Ray's own are never idle."""
    return cpu_seconds(os.getpid()).get("workers", 0.0)


def _stats() -> dict[int, list[str]]:
    return {pid: _stat(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}


def _family(root: int, stats: dict[int, list[str]]) -> set[int]:
    family = {root}
    while more := {p for p, s in stats.items() if s and int(s[1]) in family} - family:
        family |= more
    return family


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the command; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _name(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return "other"
    if "http_client.py" in command:
        return "client"
    if "muxcluster.engine.workers.owner" in command:
        return "workers"
    if "ServeReplica:muxcluster:" in command:
        title = command.split("ServeReplica:muxcluster:", 1)[1]
        return re.split(r"[\0 .]", title, maxsplit=1)[0]  # a method's name may follow
    if "ProxyActor" in command or "haproxy" in command.lower():
        return "proxy"
    return "other"
