"""The plan in force and what-if plans, for operators who ask an ingress."""

from collections.abc import Sequence
from typing import Any

from muxcluster.cluster.control.controller import Controller
from muxcluster.cluster.control.what_if import LIMIT_S
from muxcluster.cluster.ingress.controller_calls import ControllerCalls
from muxcluster.cluster.state.what_if import PlanRefusal
from muxcluster.core.errors import InvalidValue, MuxClusterError, NotReady, Overloaded

BUSY_S = 5  # when to ask again while another one's plan is made
_WAITING_S = 10.0  # beside the planning itself


class PlanClient:
    """A `PlanControl` of the HTTP server, whose plans the controller makes."""

    def __init__(self, controller: Any) -> None:
        """controller: as for `ControllerCalls`."""
        self._calls = ControllerCalls(controller)
        self._long_calls = ControllerCalls(controller, LIMIT_S + _WAITING_S)

    async def plan(self) -> dict[str, Any]:
        return _told(await self._calls.ask(Controller.plan))

    async def what_if(self, changes: Sequence[str]) -> dict[str, Any]:
        return _told(await self._long_calls.ask(Controller.what_if, tuple(changes)))


def _told(found: dict[str, Any] | PlanRefusal) -> dict[str, Any]:
    if isinstance(found, PlanRefusal):
        raise _error(found)
    return found


def _error(refusal: PlanRefusal) -> MuxClusterError:
    match refusal.code:
        case "model_loading":
            return NotReady(refusal.message, retry_after_s=BUSY_S)
        case "rate_limit_exceeded":
            return Overloaded(refusal.message, retry_after_s=BUSY_S)
        case _:
            return InvalidValue(refusal.message, "changes")
