"""`ray up` with the repository's cluster.yaml: all nodes, a cut link, a second `up`."""

import pytest

from tests.cluster_hosts.namespaces import why_not
from tests.cluster_hosts.ray_hosts import GPU, GPUS_PER_WORKER, RayHosts

pytestmark = [pytest.mark.hosts, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]


def test_every_node_is_there_with_what_it_declares(ray_hosts: RayHosts) -> None:
    nodes = ray_hosts.alive()
    assert set(nodes) == {host.ip for host in ray_hosts.nodes}
    assert "GPU" not in nodes[ray_hosts.head.ip].resources
    for worker in ray_hosts.workers:
        assert nodes[worker.ip].resources["GPU"] == GPUS_PER_WORKER
        assert nodes[worker.ip].labels["ray.io/accelerator-type"] == GPU


def test_a_node_whose_link_was_cut_comes_back(ray_hosts: RayHosts) -> None:
    cut, other = ray_hosts.workers
    ray_hosts.network.cut(cut)
    try:
        ray_hosts.wait_for_nodes([ray_hosts.head, other])
    finally:
        ray_hosts.network.restore(cut)
    ray_hosts.wait_for_nodes(ray_hosts.nodes)


def test_up_again_keeps_the_workers(ray_hosts: RayHosts) -> None:
    before = {host.name: host.processes().keys() for host in ray_hosts.workers}
    ray_hosts.ray("up ~/cluster.yaml -y --no-restart").checked()
    ray_hosts.wait_for_nodes(ray_hosts.nodes)
    for host in ray_hosts.workers:
        assert before[host.name] & host.processes().keys()
