"""The hosts themselves: apart from each other, joined by a network that can be cut, then gone."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_hosts.hosts import ROOT, Network, make_key
from tests.cluster_hosts.namespaces import why_not

pytestmark = [pytest.mark.hosts, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]


def mounts() -> str:
    return Path("/proc/self/mounts").read_text()


def links() -> str:
    return subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout


def pid_namespaces() -> set[str]:
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                found.add(os.readlink(f"/proc/{entry}/ns/pid"))
            except OSError:
                continue
    return found


@pytest.fixture()
def network(tmp_path: Path) -> Iterator[Network]:
    with Network(tmp_path) as network:
        yield network


def test_hosts_see_only_themselves(network: Network) -> None:
    one, two = network.add("one", {"COLOUR": "red"}), network.add("two", {})
    sleeper = one.start("sleep 1000", network.folder / "log")
    one.run("touch /tmp/mine ~/mine /dev/shm/mine").checked()
    seen = two.run("ls /tmp ~ /dev/shm; ps -e -o args; hostname").checked().stdout
    assert "mine" not in seen and "sleep 1000" not in seen and seen.endswith("two\n")
    assert "sleep 1000" in one.run("ps -e -o args").stdout
    assert [line for line in one.processes().values() if "sleep" in line]
    assert one.run("echo $COLOUR").stdout == "red\n"
    assert one.run("touch /etc/mine").returncode != 0
    python = f"{sys.executable} -c 'import ray; print(ray.__file__)'"
    assert two.run(f"ls {ROOT}/pyproject.toml && {python}").checked().stdout
    one.end()
    sleeper.wait(10.0)


def test_a_cut_link_says_nothing_and_heals(network: Network) -> None:
    one, two = network.add("one", {}), network.add("two", {})
    listen = (
        f"{sys.executable} -c \"import socket; s = socket.create_server(('{two.ip}', 5000))\n"
        "while True: s.accept()[0].sendall(b'hello')\""
    )
    reach = f"timeout 1 bash -c 'exec 3<>/dev/tcp/{two.ip}/5000 && head -c 5 <&3'"

    def eventually(wanted: str, code: int) -> bool:
        deadline = time.monotonic() + 20.0
        while (got := one.run(reach)).stdout != wanted or got.returncode != code:
            assert time.monotonic() < deadline, got
            time.sleep(0.1)
        return True

    server = two.start(listen, network.folder / "log")
    assert eventually("hello", 0)
    network.cut(two)
    silence = one.run(reach)
    assert (silence.returncode, silence.stderr) == (124, "")  # neither refused nor unreachable
    network.restore(two)
    assert eventually("hello", 0)
    network.kill(two)
    server.wait(10.0)
    assert two.processes() == {} and one.run(reach).returncode == 124
    (two.home / "kept").touch()
    network.boot(two)
    assert "kept" in two.run("ls ~").stdout
    assert eventually("", 1)  # refused: it is there, the listener is not


def test_ssh_lets_in_who_has_the_key(network: Network, tmp_path: Path) -> None:
    public = make_key(tmp_path / "key")
    server = network.add("server", {"COLOUR": "red"}, public)
    client = network.add("client", {})
    options = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes"
    (client.home / "key").write_bytes((tmp_path / "key").read_bytes())
    (client.home / "key").chmod(0o600)
    ask = f"ssh {options} {{}} root@{server.ip} 'hostname; echo $COLOUR'"
    assert client.run(ask.format("-i key")).checked().stdout == "server\nred\n"
    assert client.run(ask.format("")).returncode == 255


def test_nothing_is_left_after_a_failure(tmp_path: Path) -> None:
    before = mounts(), links(), pid_namespaces()
    with pytest.raises(ZeroDivisionError), Network(tmp_path) as network:
        network.add("one", {}).start("sleep 1000", tmp_path / "log")
        assert len(pid_namespaces() - before[2]) == 2
        raise ZeroDivisionError
    assert (mounts(), links(), pid_namespaces()) == before


def test_nothing_is_left_where_the_starter_is_killed(tmp_path: Path) -> None:
    before = mounts(), links(), pid_namespaces()
    code = (
        "import sys, time; from pathlib import Path\n"
        "from tests.cluster_hosts.hosts import Network\n"
        "network = Network(Path(sys.argv[1]))\n"
        "network.add('one', {}).start('sleep 1000', Path(sys.argv[1]) / 'log')\n"
        "print('up', flush=True); time.sleep(1000)"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert starter.stdout is not None and starter.stdout.readline() == b"up\n"
    assert len(pid_namespaces() - before[2]) == 2
    starter.kill()
    starter.communicate()
    deadline = time.monotonic() + 10.0
    while (mounts(), links(), pid_namespaces()) != before:
        assert time.monotonic() < deadline
        time.sleep(0.1)
