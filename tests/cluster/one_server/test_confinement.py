"""What a server on this machine shows to others: which ports, which files; and its units' logs."""

import contextlib
import ipaddress
import os
import re
import socket
import struct
from pathlib import Path

from tests.cluster.conftest import ServerProcess

LISTENING = "0A"


def _sockets(pids: set[int]) -> set[str]:
    """Inodes of the processes' sockets."""
    found: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    link = os.readlink(f"/proc/{pid}/fd/{name}")
                    found.update(re.findall(r"socket:\[(\d+)\]", link))
    return found


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Of /proc/net/tcp's "0100007F:1F90", words in the machine's order."""
    words = bytes.fromhex(text.partition(":")[0])
    packed = b"".join(
        struct.pack(">I", *struct.unpack("=I", words[i : i + 4])) for i in range(0, len(words), 4)
    )
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    found = ipaddress.ip_address(socket.inet_ntop(family, packed))
    mapped = getattr(found, "ipv4_mapped", None)
    return found if mapped is None else mapped


def _listening(pids: set[int]) -> dict[str, bool]:
    """Where these processes listen, and whether that is this machine alone."""
    ours = _sockets(pids)
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in ours:
                address = _address(fields[1])
                port = int(fields[1].partition(":")[2], 16)
                found[f"{address}:{port}"] = address.is_loopback
    return found


def test_all_ports_are_on_this_machine_only(server: ServerProcess) -> None:
    url = server.url()
    found = _listening(server.processes())
    assert url.removeprefix("http://") in found
    assert len(found) > 5, "Ray's ports are among them"
    assert all(found.values()), found


def test_its_folder_and_token_are_private(server: ServerProcess) -> None:
    server.url()
    told = {
        os.fsdecode(value)
        for pid in server.processes()
        for value in re.findall(
            rb"MUXCLUSTER_FOLDER=([^\0]+)", Path(f"/proc/{pid}/environ").read_bytes()
        )
    }
    (folder,) = map(Path, told)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "ray").is_dir() and (folder / "owner").is_file()
    token = Path.home() / ".ray" / "auth_token"
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_MODE"} & os.environ.keys():
        assert token.stat().st_mode & 0o777 == 0o600


def test_units_say_in_its_output_what_they_run(server: ServerProcess) -> None:
    server.url()
    server.wait_for(r"local-0\.1 \| .*llama-a: paged backend: its layers use")
    server.wait_for(r"controller \| .*local-0\.1: loading is ready")


def test_until_it_is_ready_its_processes_say_what_ours_say_and_nothing_else(
    server: ServerProcess,
) -> None:
    """No library's warnings: each line has a time, a module of ours and no traceback."""
    server.url()
    end = next(i for i, line in enumerate(server.lines) if line.startswith("ready after"))
    shown = [line for line in server.lines[:end] if re.match(r"\S+ \| ", line)]
    assert shown
    ours = r"\S+ \| \d{4}-\d\d-\d\d [\d:,]+ (INFO )?muxcluster\.\S+ "
    assert [line for line in shown if not re.match(ours, line)] == []
