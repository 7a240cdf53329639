"""Versions of muxcluster that are installed on the nodes of a Ray cluster."""

from typing import Any

import ray
from ray.exceptions import RayError

from muxcluster.cluster.ray.nodes import ray_nodes
from muxcluster.core.errors import Unavailable

ASK_TIMEOUT_S = 120.0  # a node starts a process for the question


def installed_versions() -> dict[str, str]:
    """Return the version that new processes of each living node will have, by the node's name.

    Raises Unavailable if a node does not answer.
    """

    def version() -> str:
        # Pickled as it is written: the module with it may be another one where it runs
        import muxcluster

        return muxcluster.__version__

    # the process ends with its first call: Ray would give it, with what it imported, to an actor
    task: Any = ray.remote(max_calls=1)(version)
    nodes = [node for node in ray_nodes() if node.is_alive]
    asked = [
        task.options(num_cpus=0, label_selector={"ray.io/node-id": node.node_id}).remote()
        for node in nodes
    ]
    try:
        found = ray.get(asked, timeout=ASK_TIMEOUT_S)
    except (RayError, TimeoutError) as error:
        message = f"not every node says which version it has: {error}"
        raise Unavailable(message.splitlines()[0]) from error
    return dict(zip((node.name for node in nodes), found, strict=True))
