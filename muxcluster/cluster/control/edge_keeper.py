"""Deployment of one ingress per node by Serve, beside the control loop.

Ingresses are replaced without a gap: stand-ins with the new settings listen beside the old ones,
which are told (`Directory.leaving`) to take no more connections and to finish their answers; then
Serve replaces the old ones, and the stand-ins leave in the same way.
"""

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

from muxcluster.cluster.state.edge import Edge, stand_in_version
from muxcluster.cluster.units.actors import CONTROLLER, find_actor

logger = logging.getLogger(__name__)

RETRY_S = 5.0
# Until then every ingress that lives has heard that it shall leave, and said so.
HEARD_S = 15.0
LEAVE_POLL_S = 0.2


class EdgeKeeper:
    """Deploy the edge again when it, or the number of nodes, changes.

    deployed: the last edge that ran on all nodes, None before the first; keep: stores another one.
    """

    def __init__(self, deployed: Edge | None, keep: Callable[[Edge], None]) -> None:
        self._deployed = deployed
        self._keep = keep
        self._done: tuple[Edge, int] | None = None
        self._task: asyncio.Task[None] | None = None
        self._not_before_s = 0.0
        self._left: dict[str, tuple[str, bool]] = {}
        self.leaving = ""  # version of the ingresses that take no more connections; empty: none
        self.problem: str | None = None
        self.num_failures = 0

    def is_deployed(self, edge: Edge | None) -> bool:
        """Return whether the ingresses of `edge` answer on all nodes."""
        return edge is None or (self._done is not None and self._done[0] == edge)

    def keep(self, edge: Edge | None, num_nodes: int) -> None:
        """Start to deploy what has changed, without waiting."""
        if edge is None or num_nodes == 0 or self._task is not None:
            return
        if self._done != (edge, num_nodes) and monotonic() >= self._not_before_s:
            self._task = asyncio.create_task(self._change(edge, num_nodes))

    def forget_failures(self) -> None:
        """Try at once what is wanted next."""
        self.problem, self.num_failures, self._not_before_s = None, 0, 0.0

    def note_leaving(self, name: str, version: str, *, is_over: bool) -> None:
        """Note that an ingress takes no more connections. is_over: its last answer has ended."""
        self._left[name] = (version, is_over)

    async def _change(self, edge: Edge, num_nodes: int) -> None:
        self._done = None
        try:
            await self._deploy(edge, num_nodes)
            self._done, self.problem, self.num_failures = (edge, num_nodes), None, 0
            if edge != self._deployed:
                self._deployed = edge
                self._keep(edge)
            await self._end_stand_ins(edge, num_nodes)
        except Exception as error:  # noqa: BLE001 - whatever Serve raises, it is tried again
            self._done = None
            self.problem = f"the ingresses do not start: {error}"
            self.num_failures += 1
            self._not_before_s = monotonic() + RETRY_S
            logger.warning("%s", self.problem)
        self.leaving = ""
        self._task = None

    async def _deploy(self, edge: Edge, num_nodes: int) -> None:
        controller = await asyncio.to_thread(find_actor, CONTROLLER)
        old = self._deployed
        is_beside = old is not None and old != edge and old.listens and edge.listens
        if is_beside:
            assert old is not None
            logger.info("ingresses stand in for those that are replaced")
            await asyncio.to_thread(edge.stand_in, controller, num_nodes)
            await self._until_left(old.version, old.count(num_nodes), old.drain_s)
        # Stand-ins of a change that failed may hold the ports still.
        shares = is_beside or (edge.listens and await asyncio.to_thread(edge.has_stand_in))
        await asyncio.to_thread(edge.deploy, controller, num_nodes, is_beside=shares)

    async def _end_stand_ins(self, edge: Edge, num_nodes: int) -> None:
        """Let stand-ins leave, also those of a controller that did not come so far."""
        if await asyncio.to_thread(edge.has_stand_in):
            version, number = stand_in_version(edge.version), edge.count(num_nodes)
            await self._until_left(version, number, edge.drain_s)
            await asyncio.to_thread(edge.end_stand_in)
            logger.info("the ingresses are replaced")

    async def _until_left(self, version: str, number: int, limit_s: float) -> None:
        """Let the ingresses of a version leave, and wait until their last answers have ended.

        number: how many there should be; what is dead says nothing. limit_s: longest answer.
        """
        self._left.clear()
        self.leaving = version
        began_s = monotonic()
        while (waited_s := monotonic() - began_s) < HEARD_S + limit_s:
            over = [is_over for said, is_over in self._left.values() if said == version]
            if all(over) and (len(over) >= number or waited_s > HEARD_S):
                break
            await asyncio.sleep(LEAVE_POLL_S)
