"""The head dies and comes back, with its state in Redis: the other hosts go on meanwhile.

One cluster goes through all of it, so the tests stand in the order of what happens.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from tests.cluster_hosts import scenarios
from tests.cluster_hosts.batches import BatchOnHosts
from tests.cluster_hosts.load import StreamResult
from tests.cluster_hosts.namespaces import why_not
from tests.cluster_hosts.ray_hosts import RayHosts
from tests.cluster_hosts.redis import why_no_redis
from tests.cluster_hosts.scenarios import Outcome
from tests.cluster_hosts.served import Served

REASON = why_not() or why_no_redis()
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(900),
]

NUM_LINES = 600


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("head_killed")
    with RayHosts(folder / "hosts", has_redis=True) as hosts:
        hosts.make_token()
        hosts.up()
        hosts.wait_for_nodes(hosts.nodes)
        served = Served(hosts, folder)
        served.up()
        yield served


@pytest.fixture(scope="module")
def expected(served: Served) -> Sequence[StreamResult]:
    return scenarios.undisturbed(served, *served.hosts.workers)


@pytest.fixture(scope="module")
def batch(served: Served, expected: Sequence[StreamResult]) -> BatchOnHosts:
    """A batch that is under way when the head dies."""
    batch = BatchOnHosts(served, served.hosts.workers[0], NUM_LINES)
    state = batch.wait_until(lambda state: state["completed"] > 0)
    assert state["completed"] < NUM_LINES / 2, "it may end before the head dies"
    return batch


def assert_nobody_noticed(outcome: Outcome) -> None:
    assert outcome.errors == []
    assert outcome.differences == scenarios.NO_DIFFERENCES


def test_streams_of_other_hosts_go_on_without_a_head(
    served: Served, expected: Sequence[StreamResult], batch: BatchOnHosts
) -> None:
    """Those that run when it dies, and then those that begin while it is away."""
    running, new = scenarios.head_killed(served, expected)
    assert_nobody_noticed(running)
    assert_nobody_noticed(new)


def test_streams_go_on_while_the_head_comes_back(
    served: Served, expected: Sequence[StreamResult]
) -> None:
    hosts = served.hosts
    before = served.unit_processes()
    assert all(before.values())
    outcome = scenarios.head_restored(served, expected)
    assert_nobody_noticed(outcome)
    state = scenarios.whole(served)
    assert served.unit_processes() == before
    assert {unit["node"] for unit in state["units"]} == {host.ip for host in hosts.workers}


def test_the_head_serves_again(served: Served, expected: Sequence[StreamResult]) -> None:
    for host in served.hosts.nodes:
        found = scenarios.undisturbed(served, host)
        assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert "nothing to change" in served.up().stdout


def test_the_batch_goes_on_and_has_each_line_once(served: Served, batch: BatchOnHosts) -> None:
    state = batch.wait_until(lambda state: state["status"] == "completed")
    assert (state["completed"], state["failed"]) == (NUM_LINES, 0)
    assert Counter(batch.line_ids()) == Counter(f"line-{index}" for index in range(NUM_LINES))


def test_down_leaves_no_process_on_any_host(served: Served) -> None:
    served.muxcluster("down --ray --yes", timeout_s=120.0).checked()
    served.hosts.ray("down ~/cluster.yaml -y").checked()
    served.hosts.wait_for_no_process()
