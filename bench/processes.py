"""Processor time of a process tree by kind of process."""

import os
import re
from pathlib import Path

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


def descendants(root: int) -> set[int]:
    """Return the processes that `root` made, and itself."""
    return _family(root, _stats())


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
