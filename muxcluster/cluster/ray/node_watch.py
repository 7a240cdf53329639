"""Polling of the nodes: which exist and which are reachable."""

import asyncio
import logging
from time import monotonic
from typing import Any

from ray.exceptions import RayError

from muxcluster.cluster.ray.nodes import NodeProbe, RayNode, ray_nodes, remaining_nodes
from muxcluster.cluster.state.desired import Desired
from muxcluster.placement.problem import Node

logger = logging.getLogger(__name__)

LOOK_PERIOD_S = 0.5
SETTLE_S = 3.0  # new nodes often join together: replan when none has joined for this long
# Serve needs a moment to see that an ingress died with its node. Before that it would make room by
# ending one that lives.
SHRINK_S = 15.0


class NodeWatch:
    """Poll the nodes, from `start` on.

    is_local: everything runs on this machine, whatever the plan's nodes are called.
    """

    def __init__(self, *, is_local: bool) -> None:
        self._is_local = is_local
        self._node_probe = NodeProbe()
        self._nodes: tuple[RayNode, ...] = ()
        self._reachable: frozenset[str] = frozenset()
        self._joined_s = self._left_s = monotonic()
        self._num_edges = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to poll, on the running event loop."""
        self._task = asyncio.create_task(self._look())

    @property
    def is_known(self) -> bool:
        """Whether the nodes have been polled."""
        return bool(self._nodes)

    @property
    def reachable(self) -> frozenset[str]:
        """Ids of the nodes that Ray calls alive and that answer our probes."""
        return self._reachable

    @property
    def dead(self) -> frozenset[str]:
        """Ids of nodes that Ray has given up; what ran there is gone for good."""
        return frozenset(node.node_id for node in self._nodes if not node.is_alive)

    @property
    def num_edges(self) -> int:
        """Number of nodes for ingresses."""
        return 1 if self._is_local else self._num_edges

    def node_id(self, name: str) -> str | None:
        """Return Ray's id of the node that a plan calls `name`, None if it is not there."""
        for node in self._nodes:
            is_it = node.is_head if self._is_local else node.name == name
            if is_it and node.node_id in self._reachable:
                return node.node_id
        return None

    def usable(self, desired: Desired) -> tuple[Node, ...]:
        """Return nodes that a plan could use now; new ones once no others joined for a while."""
        if self._is_local:
            return desired.nodes
        there = [node for node in self._nodes if node.node_id in self._reachable]
        found = remaining_nodes(desired.config, there, needs_gpus=desired.needs_gpus)
        if monotonic() - self._joined_s < SETTLE_S:
            return tuple(node for node in found if node in desired.nodes)
        return found

    def described(self) -> list[dict[str, Any]]:
        """Return the nodes for the status; a node that came back is not listed as dead too."""
        names = {node.name for node in self._nodes if node.is_alive}
        return [
            {
                "name": node.name,
                "alive": node.node_id in self._reachable,
                "address": node.ip,
                "gpu": node.gpu,
                "resources": {"CPU": node.num_cpus, "GPU": float(node.num_gpus)},
            }
            for node in self._nodes
            if node.is_alive or node.name not in names
        ]

    async def _look(self) -> None:
        while True:
            try:
                nodes = await asyncio.to_thread(ray_nodes)
            except (RayError, RuntimeError) as error:
                logger.warning("Ray does not say what nodes there are: %s", error)
            else:
                await self._take(nodes)
            await asyncio.sleep(LOOK_PERIOD_S)

    async def _take(self, nodes: tuple[RayNode, ...]) -> None:
        reachable = await self._node_probe.probe(nodes)
        living = sum(node.is_alive for node in nodes)
        if reachable - self._reachable:
            self._joined_s = monotonic()
        if living >= self._num_edges:
            self._left_s = monotonic()
            self._num_edges = living
        elif monotonic() - self._left_s > SHRINK_S:
            self._num_edges = living
        for node_id in self._reachable - reachable:
            logger.warning("node %s cannot be reached", node_id)
        self._nodes, self._reachable = nodes, reachable
