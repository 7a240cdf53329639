"""Deployment of one ingress per node by Serve, beside the control loop."""

import asyncio
import logging
from time import monotonic

from muxcluster.cluster.state.edge import Edge
from muxcluster.cluster.units.actors import CONTROLLER, find_actor

logger = logging.getLogger(__name__)

RETRY_S = 5.0


class EdgeKeeper:
    """Deploy the edge again when it, or the number of nodes, changes."""

    def __init__(self) -> None:
        self._done: tuple[Edge, int] | None = None
        self._task: asyncio.Task[None] | None = None
        self._not_before_s = 0.0
        self._is_wanted = False
        self.problem: str | None = None
        self.num_failures = 0

    @property
    def is_deployed(self) -> bool:
        return not self._is_wanted or (self._done is not None and self._task is None)

    def keep(self, edge: Edge | None, num_nodes: int) -> None:
        """Start to deploy what has changed, without waiting."""
        self._is_wanted = edge is not None
        if edge is None or num_nodes == 0 or self._task is not None:
            return
        if self._done != (edge, num_nodes) and monotonic() >= self._not_before_s:
            self._task = asyncio.create_task(self._deploy(edge, num_nodes))

    async def _deploy(self, edge: Edge, num_nodes: int) -> None:
        try:
            controller = await asyncio.to_thread(find_actor, CONTROLLER)
            await asyncio.to_thread(edge.deploy, controller, num_nodes)
        except Exception as error:  # noqa: BLE001 - whatever Serve raises, it is tried again
            self.problem = f"the ingresses do not start: {error}"
            self.num_failures += 1
            self._not_before_s = monotonic() + RETRY_S
            logger.warning("%s", self.problem)
        else:
            self._done, self.problem, self.num_failures = (edge, num_nodes), None, 0
        self._task = None
