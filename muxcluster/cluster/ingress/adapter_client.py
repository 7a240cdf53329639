"""Loads and unloads adapters by the controller, whose refusals are errors here."""

from typing import Any

from muxcluster.cluster.control.adapters import CHECK_S
from muxcluster.cluster.control.controller import Controller
from muxcluster.cluster.ingress.controller_calls import ControllerCalls
from muxcluster.core.errors import InvalidValue, ModelNotFound, MuxClusterError, NotReady
from muxcluster.core.inputs.adapters.load import AdapterLoad, AdapterRefusal
from muxcluster.core.served import ServedModel

_WAITING_S = 30.0  # for others' adapters that are checked first


class AdapterClient:
    """An `AdapterControl` of the HTTP server."""

    def __init__(self, controller: Any) -> None:
        """controller: as for `ControllerCalls`."""
        self._calls = ControllerCalls(controller, CHECK_S + _WAITING_S)

    async def load_adapter(self, asked: AdapterLoad) -> ServedModel:
        found = await self._calls.ask(Controller.load_adapter, asked)
        if isinstance(found, AdapterRefusal):
            raise _error(found)
        return found

    async def unload_adapter(self, name: str) -> None:
        refusal = await self._calls.ask(Controller.unload_adapter, name)
        if refusal is not None:
            raise _error(refusal)


def _error(refusal: AdapterRefusal) -> MuxClusterError:
    match refusal.code:
        case "model_not_found":
            return ModelNotFound(refusal.message, refusal.param)
        case "model_loading":
            return NotReady(refusal.message)
        case _:
            return InvalidValue(refusal.message, refusal.param)
