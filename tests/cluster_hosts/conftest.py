"""One Ray cluster over three hosts for the whole folder."""

from collections.abc import Iterator

import pytest

from tests.cluster_hosts.ray_hosts import RayHosts
from tests.cluster_hosts.redis import why_no_redis


@pytest.fixture(scope="session")
def ray_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHosts]:
    """The cluster after `ray up`, with all its nodes; its head's state is in Redis where there is
    one."""
    folder = tmp_path_factory.mktemp("ray_hosts")
    with RayHosts(folder, has_redis=why_no_redis() is None) as hosts:
        hosts.make_token()
        hosts.up()
        hosts.wait_for_nodes(hosts.nodes)
        yield hosts
