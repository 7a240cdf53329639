"""Who is on the hosts' network without the token gets nowhere; the same ways work with it."""

import json
from collections.abc import Callable

import pytest

from tests.cluster_hosts.hosts import Ended
from tests.cluster_hosts.namespaces import why_not
from tests.cluster_hosts.ray_hosts import RayHosts

pytestmark = [pytest.mark.hosts, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

WRONG = "0" * 64
TRIES = 3
DRIVER = """
import ray
ray.init("{address}", log_to_driver=False, logging_level="ERROR")
print(len(ray.nodes()))
"""
STORE = """
from ray._raylet import GcsClient
print(len(GcsClient(address="{address}").get_all_node_info()))
"""


def environment(token: str | None) -> dict[str, str]:
    if token is None:
        return {"RAY_AUTH_MODE": "disabled"}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}


def submit(hosts: RayHosts, token: str | None) -> Ended:
    """Ask a node's job agent, the only job API that listens beyond the loopback device."""
    job = json.dumps({"entrypoint": "true"})
    bearer = "" if token is None else f"-H 'Authorization: Bearer {token}'"
    return hosts.stranger.run(
        f"curl -sS -m 20 --fail -H 'Content-Type: application/json' {bearer} -d '{job}' "
        f"http://{hosts.head.ip}:52365/api/job_agent/jobs/"
    )


def read_state(hosts: RayHosts, token: str | None) -> Ended:
    """Ask Ray's control store, where all that joins or drives begins."""
    code = STORE.format(address=f"{hosts.head.ip}:6379")
    return hosts.python(hosts.stranger, code, environment=environment(token))


def drive(hosts: RayHosts, token: str | None) -> Ended:
    """Connect as a driver, in whose name anything may be run, by Ray's client protocol."""
    code = DRIVER.format(address=f"ray://{hosts.head.ip}:10001")
    return hosts.python(hosts.stranger, code, environment=environment(token))


@pytest.mark.parametrize(
    ("way", "bad_tokens"),
    # Ray's client tries for half a minute before it gives up.
    [(submit, (None, WRONG)), (read_state, (None, WRONG)), (drive, (None,))],
)
def test_no_job_without_the_token(
    ray_hosts: RayHosts,
    way: Callable[[RayHosts, str | None], Ended],
    bad_tokens: tuple[str | None, ...],
) -> None:
    for token in bad_tokens:
        refused = way(ray_hosts, token)
        assert refused.returncode != 0, refused
    # Ray's server for clients now and then takes the process that it has just started for a zombie.
    for _ in range(TRIES):
        allowed = way(ray_hosts, ray_hosts.token)
        if allowed.returncode == 0:
            break
    allowed.checked()


def test_no_node_joins_without_the_token(ray_hosts: RayHosts) -> None:
    stranger = ray_hosts.stranger
    start = f"~/venv/bin/ray start --address={ray_hosts.head.ip}:6379"
    refused = stranger.run(start, timeout_s=120.0, environment=environment(WRONG))
    assert refused.returncode != 0 and "InvalidAuthToken" in refused.stderr
    assert stranger.processes() == {}
    ray_hosts.wait_for_nodes(ray_hosts.nodes)
    try:
        stranger.run(start, timeout_s=120.0, environment=environment(ray_hosts.token)).checked()
        ray_hosts.wait_for_nodes([*ray_hosts.nodes, stranger])
    finally:
        stranger.run("~/venv/bin/ray stop", timeout_s=120.0)
    ray_hosts.wait_for_nodes(ray_hosts.nodes)


def test_the_dashboard_is_for_the_head_and_who_has_the_token(ray_hosts: RayHosts) -> None:
    ask = "curl -sS -m 20 --fail {} http://{}:8265/api/version"
    refused = ray_hosts.stranger.run(ask.format("", ray_hosts.head.ip))
    assert refused.returncode == 7, refused  # nobody listens there
    bearer = f"-H 'Authorization: Bearer {ray_hosts.token}'"
    assert ray_hosts.stranger.run(ask.format(bearer, ray_hosts.head.ip)).returncode == 7
    assert "401" in ray_hosts.head.run(ask.format("", "127.0.0.1")).stderr
    assert "ray_version" in ray_hosts.head.run(ask.format(bearer, "127.0.0.1")).checked().stdout


def test_ssh_is_closed_to_a_stranger(ray_hosts: RayHosts) -> None:
    options = "-o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    for node in ray_hosts.nodes:
        refused = ray_hosts.stranger.run(f"ssh {options} root@{node.ip} true")
        assert refused.returncode == 255 and "Permission denied" in refused.stderr


def test_the_token_is_readable_by_its_user_alone(ray_hosts: RayHosts) -> None:
    for node in ray_hosts.nodes:
        assert (node.home / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o600
        assert (node.home / ".ray" / "auth_token").read_text().strip() == ray_hosts.token
