"""One Ray cluster over three hosts for the whole folder."""

from collections.abc import Iterator

import pytest

from tests.cluster_hosts.ray_hosts import RayHosts


@pytest.fixture(scope="session")
def ray_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHosts]:
    """The cluster after `ray up`, with all its nodes."""
    with RayHosts(tmp_path_factory.mktemp("ray_hosts")) as hosts:
        hosts.make_token()
        hosts.up()
        hosts.wait_for_nodes(hosts.nodes)
        yield hosts
