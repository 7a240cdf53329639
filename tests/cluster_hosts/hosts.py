"""Hosts made of namespaces: each has its own network, processes, mounts, home and IP address.

Nothing of them is visible outside: the bridge that joins them stands in a namespace of its own,
and all goes with the process that is PID 1 in each, which ends when this one does.
"""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.cluster_hosts.closing import Closing
from tests.cluster_hosts.namespaces import PATH, Namespaces, checked

ROOT = Path(__file__).resolve().parents[2]
NETWORK = "10.77.0"
SWITCH_IP = f"{NETWORK}.254"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: exit code, and what it printed."""

    returncode: int
    stdout: str
    stderr: str

    def checked(self) -> Self:
        """Itself; raises AssertionError with the output where the exit code is not 0."""
        assert self.returncode == 0, f"exit {self.returncode}\n{self.stdout}\n{self.stderr}"
        return self


class Host:
    """One host: `name`, `ip`, a home of its own, and, unless it is down, an sshd.

    number: last part of its address. authorized_key: the public key its sshd lets in.
    environment: what sshd gives to every session, and `run` to every command.
    """

    def __init__(
        self,
        name: str,
        number: int,
        folder: Path,
        environment: Mapping[str, str],
        authorized_key: str | None = None,
    ) -> None:
        self.name = name
        self.ip = f"{NETWORK}.{number}"
        self._mac = f"02:00:00:00:00:{number:02x}"
        self.folder = folder
        self.home = folder / "home"
        self._environment = dict(environment)
        self._key = authorized_key
        self._namespaces: Namespaces | None = None
        for path in (self.home / ".ssh", folder / "tmp"):
            path.mkdir(parents=True)
        (folder / "tmp").chmod(0o1777)
        (self.home / ".bashrc").touch()

    @property
    def port_name(self) -> str:
        """The switch's end of its cable."""
        return f"to-{self.name}"[:15]

    @property
    def is_up(self) -> bool:
        return self._namespaces is not None

    def boot(self, switch: Namespaces) -> None:
        """Start it, with the files that it had: cable, address, sshd."""
        self._namespaces = Namespaces(self.name, self._binds(), _kept_paths())
        inside = self._namespaces.enter("net")
        # The kernel keeps the network of a killed host, and the cable in it, while packets that
        # were never acknowledged are in its sockets.
        old = [*switch.enter("net"), "ip", "link", "delete", self.port_name]
        subprocess.run(old, capture_output=True, check=False)
        cable = (
            f"ip link add {self.port_name} type veth peer name eth0 netns {self._namespaces.pid}"
        )
        for prefix, command in (
            (switch.enter("net"), cable),
            (switch.enter("net"), f"ip link set {self.port_name} master br0 up"),
            # The same address after a reboot: nobody's table of neighbours becomes wrong.
            (inside, f"ip link set eth0 address {self._mac}"),
            (inside, f"ip address add {self.ip}/24 dev eth0"),
            (inside, "ip link set eth0 up"),
            (inside, f"ip route add default via {SWITCH_IP}"),
        ):
            checked([*prefix, *command.split()])
        if self._key is not None:
            self._start_sshd()

    def run(
        self, command: str, *, timeout_s: float = 60.0, environment: Mapping[str, str] | None = None
    ) -> Ended:
        """Run a shell command in its home. Raises TimeoutExpired; what it started stays."""
        done = subprocess.run(
            [*self._inside(), "bash", "-c", f"cd ~; {command}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=self._all_variables(environment),
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def start(
        self, command: str, log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a shell command in its home; its output goes to `log`."""
        with log.open("wb") as file:
            return subprocess.Popen(
                [*self._inside(), "bash", "-c", f"cd ~; exec {command}"],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._all_variables(environment),
            )

    def processes(self) -> dict[int, str]:
        """Command lines of what runs on it, by PID outside; without its sshd's."""
        if self._namespaces is None:
            return {}
        found = self._namespaces.processes()
        return {pid: line for pid, line in found.items() if "sshd" not in line.split(" ")[0]}

    def kill(self) -> None:
        """Kill all its processes at once; `end` waits until they are gone."""
        if self._namespaces is not None:
            self._namespaces.kill()

    def end(self) -> None:
        """Kill all its processes at once; its files stay."""
        if self._namespaces is not None:
            self._namespaces.end()
            self._namespaces = None

    def _inside(self) -> list[str]:
        assert self._namespaces is not None, f"{self.name} is down"
        return self._namespaces.enter("net", "pid", "mount", "uts", "ipc")

    def _all_variables(self, more: Mapping[str, str] | None) -> dict[str, str]:
        base = {"HOME": str(Path.home()), "PATH": PATH, "LANG": "C.UTF-8", "USER": "root"}
        return {**base, **self._environment, **(more or {})}

    def _binds(self) -> list[tuple[Path, str]]:
        # /tmp last: the sources may lie in it.
        return [(self.home, str(Path.home())), (self.folder / "tmp", "/tmp")]

    def _start_sshd(self) -> None:
        folder, seen = self.home / ".sshd", Path.home() / ".sshd"
        if not folder.exists():
            folder.mkdir()
            make_key(folder / "host_key")
        (self.home / ".ssh" / "authorized_keys").write_text(f"{self._key}\n")
        variables = " ".join(f"{key}={value}" for key, value in self._environment.items())
        lines = [
            f"ListenAddress {self.ip}",
            f"HostKey {seen / 'host_key'}",
            "PidFile none",
            "UsePAM no",
            "StrictModes no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            "MaxStartups 100",
        ]
        if variables:
            lines.append(f"SetEnv {variables}")
        (folder / "config").write_text("\n".join(lines) + "\n")
        self.run(f"exec /usr/sbin/sshd -f {seen / 'config'}").checked()


def make_key(path: Path) -> str:
    """A new ssh key pair at `path`; returns the public half."""
    checked(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)])
    return path.with_name(path.name + ".pub").read_text().strip()


def _kept_paths() -> list[Path]:
    """What every host sees of this machine's home and /tmp: source, interpreter, packages."""
    return list({ROOT, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()})


class Network(Closing):
    """Hosts on one switch; everything is gone when the `with` block is left.

    folder: where homes and temporary files of the hosts are kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts: dict[str, Host] = {}
        self._switch = Namespaces("switch", (), ())
        for command in (
            "ip link add br0 type bridge forward_delay 0",
            "ip link set br0 up",
            f"ip address add {SWITCH_IP}/24 dev br0",
            # What is sent beyond the network is answered "unreachable", not lost in silence.
            "sysctl -q -w net.ipv4.ip_forward=1",
        ):
            checked([*self._switch.enter("net"), *command.split()])

    def add(
        self, name: str, environment: Mapping[str, str], authorized_key: str | None = None
    ) -> Host:
        """A new host, up; addresses count from .1 in the order of adding."""
        number = len(self.hosts) + 1
        host = Host(name, number, self.folder / name, environment, authorized_key)
        self.hosts[name] = host
        host.boot(self._switch)
        return host

    def cut(self, host: Host) -> None:
        """Cut its link: packets vanish both ways, and neither end is told."""
        self._set_port(host, 0)

    def restore(self, host: Host) -> None:
        """Let packets through again."""
        self._set_port(host, 3)

    def kill(self, host: Host) -> None:
        """As if its power went: the link first, so that no process says goodbye."""
        self.cut(host)
        host.end()

    def boot(self, host: Host) -> None:
        """Switch a killed host on again; it has its files and no processes but sshd."""
        host.boot(self._switch)

    def close(self) -> None:
        """Kill every host and the switch."""
        for host in self.hosts.values():
            host.kill()
        for host in self.hosts.values():
            host.end()
        self._switch.end()

    def _set_port(self, host: Host, state: int) -> None:
        """Set the state of its port of the bridge: 0 disabled, 3 forwarding."""
        command = ["bridge", "link", "set", "dev", host.port_name, "state", str(state)]
        checked([*self._switch.enter("net"), *command])
