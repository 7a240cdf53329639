"""The live view of one server process: gathers, encodes and keeps it for a moment."""

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import msgspec

from muxcluster import __version__
from muxcluster.core.errors import MuxClusterError
from muxcluster.http.live.conditions import Conditions
from muxcluster.http.live.snapshot import models_told, units_told
from muxcluster.http.live.units import UnitHistory
from muxcluster.http.metrics.batches import BatchMetrics
from muxcluster.http.metrics.recent import RecentRequests
from muxcluster.router.backend import Backend

logger = logging.getLogger(__name__)

FRESH_S = 0.4  # a snapshot serves everybody who asks within so long
CLUSTER_PERIOD_S = 1.0  # how often the controller is asked, while somebody looks
CLUSTER_WAIT_S = 0.3  # how long a snapshot waits for its answer before it tells the last one
# of the controller's state, what is told as it is
_OF_CLUSTER = ("healthy", "nodes", "missing_units", "unplaced", "rates")


class Cluster(Protocol):
    """What an ingress knows of units and of the controller."""

    def links(self) -> Mapping[str, str]:
        """Return the state of the link to each unit, by id."""
        ...

    async def status(self) -> Mapping[str, Any]:
        """Return the controller's state, as `muxcluster status` prints it. Raises NotReady."""
        ...


@dataclass(frozen=True, slots=True)
class LiveParts:
    """What this process itself sees of units, requests and batches."""

    units: UnitHistory
    recent: RecentRequests
    batches: BatchMetrics
    conditions: Conditions


class LiveView:
    """Answers /v1/cluster/live. cluster: None where units are in this process."""

    def __init__(
        self, backend: Backend, parts: LiveParts, cluster: Cluster | None, *, has_plan: bool
    ) -> None:
        """has_plan: there is a plan to ask for."""
        self._has_plan = has_plan
        self._backend = backend
        self._parts = parts
        self._controller = None if cluster is None else _ControllerState(cluster)
        self._encoded = b""
        self._encoded_s = -math.inf

    async def encoded(self) -> bytes:
        """Return the snapshot as JSON, at most `FRESH_S` old."""
        if time.monotonic() - self._encoded_s > FRESH_S:
            state = None if self._controller is None else await self._controller.latest()
            if time.monotonic() - self._encoded_s > FRESH_S:  # else another made it meanwhile
                self._encoded = msgspec.json.encode(self._snapshot(state))
                self._encoded_s = time.monotonic()
        return self._encoded

    def _snapshot(self, state: Mapping[str, Any] | None) -> dict[str, Any]:
        state = state or {}
        described = {unit["id"]: unit for unit in state.get("units", ())}
        parts = self._parts
        units = units_told(parts.units.units(), described)
        figures = parts.batches.figures
        events = [*parts.units.events(), *parts.conditions.events()]
        return {
            "time_s": time.time(),
            "version": __version__,
            "ready": self._backend.ready(),
            "has_plan": self._has_plan,
            "cluster": {
                **{name: state.get(name) for name in _OF_CLUSTER},
                "error": state.get("error"),
            },
            "units": units,
            "models": models_told(
                self._backend.models(), units, parts.recent.figures(time.monotonic())
            ),
            "batches": None if figures is None else asdict(figures),
            "conditions": [asdict(each) for each in parts.conditions.now()],
            "events": [asdict(event) for event in sorted(events, key=lambda each: -each.time_s)],
        }


class _ControllerState:
    """The controller's last answer; a controller that hangs holds up no snapshot."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._asking: asyncio.Task[None] | None = None
        self._asked_s = -math.inf
        self._state: Mapping[str, Any] = {}

    async def latest(self) -> Mapping[str, Any]:
        """Return the state, with `error` where the controller did not answer the last time."""
        if self._asking is None and time.monotonic() - self._asked_s > CLUSTER_PERIOD_S:
            self._asking = asyncio.create_task(self._ask())
        if self._asking is not None:
            await asyncio.wait({self._asking}, timeout=CLUSTER_WAIT_S)
        return self._state

    async def _ask(self) -> None:
        try:
            self._state = {**await self._cluster.status(), "error": None}
        except MuxClusterError as error:
            self._state = {**self._state, "error": str(error)}
        except Exception as error:
            logger.exception("the state of the cluster is not told")
            self._state = {**self._state, "error": f"{type(error).__name__}: {error}"}
        finally:
            self._asking, self._asked_s = None, time.monotonic()
