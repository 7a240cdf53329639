"""A Redis server on a host of its own, in which the head of a Ray cluster keeps its state."""

import secrets
import shutil

from tests.cluster_hosts.hosts import Host
from tests.cluster_hosts.namespaces import PATH

PORT = 6379


def why_no_redis() -> str | None:
    """The reason why there is no Redis here; None where there is one."""
    if shutil.which("redis-server", path=PATH) is None:
        return "not installed: redis-server (Debian: redis-server)"
    return None


class Redis:
    """A Redis that runs on `host` from now on and writes to its disk each second."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._password = secrets.token_hex(16)
        lines = [
            f"bind {host.ip}",
            f"port {PORT}",
            f"requirepass {self._password}",
            "appendonly yes",
            'save ""',
        ]
        (host.home / "redis.conf").write_text("\n".join(lines) + "\n")
        host.start("redis-server redis.conf", host.folder / "redis.log")

    def changes(self) -> dict[str, str]:
        """What becomes of cluster.yaml for a head that keeps its state here, as the documentation
        says it."""
        start = "ray start --head"
        return {
            f"~/venv/bin/{start}": (
                f"RAY_REDIS_ADDRESS={self._host.ip}:{PORT}"
                f" ~/venv/bin/{start} --redis-password={self._password}"
            )
        }
