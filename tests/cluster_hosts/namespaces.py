"""Namespaces of a host: its own network, processes and mounts; can they be made here?"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

END_TIMEOUT_S = 20.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_INIT = Path(__file__).with_name("host_init.py")
_PROGRAMS = ("ip", "bridge", "unshare", "nsenter", "sshd", "ssh", "ssh-keygen", "rsync", "hostname")
_UNSHARE = ("unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--kill-child")


def why_not() -> str | None:
    """The reason why hosts cannot be made here; None where they can."""
    if sys.platform != "linux":
        return "namespaces need Linux"
    if os.geteuid() != 0:
        return "namespaces need root"
    if missing := [name for name in _PROGRAMS if shutil.which(name, path=PATH) is None]:
        return f"not installed: {', '.join(missing)} (Debian: openssh-server rsync iproute2)"
    probe = [*_UNSHARE, "sh", "-c", "mount --make-rprivate / && ip link add type bridge"]
    tried = subprocess.run(probe, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        return f"namespaces are not allowed here: {tried.stderr.strip()}"
    return None


class Namespaces:
    """The namespaces of one host (or of the switch) and the process that holds them."""

    def __init__(self, name: str, binds: Sequence[tuple[Path, str]], keep: Sequence[Path]) -> None:
        settings = {
            "hostname": name,
            "binds": [(str(source), target) for source, target in binds],
            "keep": [str(path) for path in keep],
        }
        self._process = subprocess.Popen(
            [*_UNSHARE, sys.executable, "-I", str(_INIT), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"host {name} did not start: exit {self._process.wait()}")
        self.pid = int(line)
        self._namespace = os.readlink(f"/proc/{self.pid}/ns/pid")

    def enter(self, *namespaces: str) -> list[str]:
        """The command prefix that runs something in these of its namespaces (`net`, `pid`, ...)."""
        return ["nsenter", "-t", str(self.pid), *(f"--{name}" for name in namespaces)]

    def processes(self) -> dict[int, str]:
        """Command lines of what runs in it, by PID outside; without PID 1 and zombies."""
        found = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == self.pid:
                continue
            try:
                if os.readlink(f"/proc/{entry}/ns/pid") != self._namespace:
                    continue
                command = Path(f"/proc/{entry}/cmdline").read_bytes()
            except OSError:
                continue
            if command:
                found[int(entry)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
        return found

    def kill(self) -> None:
        """Kill everything in it, at once."""
        self._process.kill()  # `--kill-child`: PID 1 goes with it, and all others with PID 1

    def end(self) -> None:
        """Kill everything in it; returns when it is gone."""
        self.kill()
        self._process.communicate(timeout=END_TIMEOUT_S)
        deadline = time.monotonic() + END_TIMEOUT_S
        while Path(f"/proc/{self.pid}").exists() or self.processes():
            if time.monotonic() > deadline:
                raise RuntimeError(f"still there: {self.processes()}")
            time.sleep(0.02)


def checked(command: Sequence[str]) -> None:
    """Run it. Raises RuntimeError with what it printed where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
