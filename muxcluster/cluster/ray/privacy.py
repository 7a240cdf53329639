"""Restriction of an embedded Ray to this machine, and of its token to this user."""

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray._private import ray_constants, services
from ray.serve._private import replica
from ray.util import get_node_ip_address

from muxcluster.core.inputs.private import make_private_folder, tighten

# If it is off, as by default on macOS, Ray uses 127.0.0.1 as the node's address, and all its
# servers listen only there. On Linux they would listen on every address.
_LOOPBACK = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
_LOOPBACK_IP, _MAPPED_IP = "127.0.0.1", "[::ffff:127.0.0.1]"
_CONNECT_S = 10.0
_TOKEN_BYTES = 32


@contextmanager
def on_loopback() -> Iterator[None]:
    """Let a Ray started in the block listen on 127.0.0.1 only; a value of the user's prevails."""
    before, was_cluster = os.environ.get(_LOOPBACK), ray_constants.ENABLE_RAY_CLUSTER
    os.environ.setdefault(_LOOPBACK, "0")
    # read from the environment when Ray was imported
    ray_constants.ENABLE_RAY_CLUSTER = ray_constants.env_bool(_LOOPBACK, True)
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = was_cluster
        if before is None:
            os.environ.pop(_LOOPBACK, None)


def keep_replica_on_loopback() -> None:
    """Let this process's Serve replica listen on 127.0.0.1 only, if the node has no other address.

    Each replica opens a gRPC port for calls from other deployments on every address, accepts
    pickled arguments there, and has no setting for it. Call this before the replica is ready.
    """
    if get_node_ip_address() != _LOOPBACK_IP:
        return
    listen = replica.add_port_to_grpc_server

    def listen_here(server: Any, address: str) -> Any:
        return listen(server, address.replace("[::]", _LOOPBACK_IP))

    replica.add_port_to_grpc_server = listen_here


def joinable(address: str) -> str:
    """Return `address`, "host:port", in a form in which another process of this machine can join.

    Ray replaces 127.0.0.1 by the machine's network address, where an embedded Ray does not listen;
    it does not replace the IPv4-mapped form of 127.0.0.1.
    """
    host, _, port = address.rpartition(":")
    return f"{_MAPPED_IP}:{port}" if host == _LOOPBACK_IP else address


def found(address: str) -> str:
    """Return the address of Ray for `ray.init`: `address` itself, or 127.0.0.1 if only that
    answers.

    address: "host:port", or "auto" for one of this machine. Raises ConnectionError if none answers,
    or "auto" finds several; ValueError for an address of another form.
    """
    if "://" in address or address != "auto" and not address.rpartition(":")[2].isdigit():
        raise ValueError("expected host:port or auto")
    known = services.canonicalize_bootstrap_address_or_die(address)
    host, _, port = known.rpartition(":")
    if _answers(host, port):
        return address
    if _answers(_LOOPBACK_IP, port):
        return joinable(f"{_LOOPBACK_IP}:{port}")
    # Ray itself would try for minutes
    raise ConnectionError("nothing listens there")


def _answers(host: str, port: str) -> bool:
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S):
            return True
    except (OSError, OverflowError, ValueError):
        return False


def token_file() -> Path:
    """Path of the token that calls to Ray need."""
    place = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return Path(place) if place else Path.home() / ".ray" / "auth_token"


def keep_token_private() -> None:
    """Remove the rights of others from Ray's token, which Ray creates with the umask's."""
    tighten(token_file())


def make_token() -> None:
    """Create a token that only this user can read, if there is none and Ray would create one.

    Raises OSError.
    """
    keep_token_private()
    file = token_file()
    is_told = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"} & os.environ.keys()
    if is_told or file.exists():
        return
    if not file.parent.exists():
        make_private_folder(file.parent)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w") as opened:
        opened.write(secrets.token_hex(_TOKEN_BYTES))
