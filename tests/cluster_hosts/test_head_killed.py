"""A head whose tables are in Redis loses its power under load, and comes back at its address."""

from collections.abc import Iterator

import pytest

from tests.cluster.redis_server import why_no_redis
from tests.cluster_hosts import scenarios
from tests.cluster_hosts.load import Differences
from tests.cluster_hosts.namespaces import why_not
from tests.cluster_hosts.ray_hosts import RayHosts
from tests.cluster_hosts.served import Served

REASON = why_not() or why_no_redis()
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("head")
    with RayHosts(folder / "hosts", has_redis=True) as hosts:
        hosts.make_token()
        hosts.up()
        hosts.wait_for_nodes(hosts.nodes)
        served = Served(hosts, folder)
        served.up()
        yield served


def test_streams_of_other_hosts_go_on_and_the_head_comes_back(served: Served) -> None:
    expected = scenarios.undisturbed(served)
    before = [unit["id"] for unit in served.status()["units"]]
    outcome = scenarios.head_killed(served, expected)
    assert outcome.errors == []
    assert outcome.differences == Differences(0, 0)
    assert [unit["id"] for unit in outcome.status["units"]] == before
    again = scenarios.undisturbed(served)
    assert [each.tokens for each in again] == [each.tokens for each in expected]
