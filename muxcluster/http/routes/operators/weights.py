"""POST /sleep, /wake_up, /pin and /unpin, GET /is_sleeping: an operator moves a model's weights."""

import asyncio
from collections.abc import Mapping

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from muxcluster.core.errors import (
    EngineFailure,
    InvalidValue,
    MissingParameter,
    ModelNotFound,
    NotReady,
    RequestTimeout,
    UnsupportedParameter,
)
from muxcluster.core.residency import WeightOrder, WeightState
from muxcluster.core.served import ModelStats
from muxcluster.http.answers.streaming import unless_disconnected
from muxcluster.http.routes.generation import client_limit_s, json_response
from muxcluster.http.settings import ApiSettings
from muxcluster.router.backend import Backend

POLL_S = 0.05  # until the units' next reports are read
PARKED_LEVEL = 1
_ASLEEP = (WeightState.PARKED, WeightState.COLD)
_AWAY = (WeightOrder.PARK, WeightOrder.HOLD)


def weight_routes(backend: Backend, settings: ApiSettings) -> APIRouter:
    """Return the routes; `Edge` lets the admin key alone through."""
    router = APIRouter()

    async def follow(
        request: Request, order: WeightOrder, model: str | None, unit: str | None
    ) -> Response:
        name = _named(backend, model)
        given_s, most_s = client_limit_s(request), settings.request_timeout_s
        limit_s = most_s if given_s is None else min(most_s, given_s)
        await request.body()
        done = _followed(backend, name, order, unit, limit_s)
        return json_response(await unless_disconnected(request, done))

    @router.post("/sleep", response_model=None)
    async def sleep(
        request: Request,
        model: str | None = None,
        level: int = PARKED_LEVEL,
        hold: bool = True,
        unit: str | None = None,
    ) -> Response:
        """Park a model; with `hold` until /wake_up, else until its next request."""
        _check_query(request, {"model", "level", "hold", "unit"})
        if level != PARKED_LEVEL:
            message = f"level {level}: weights can be parked (level 1), and nothing else"
            raise InvalidValue(message, "level")
        order = WeightOrder.HOLD if hold else WeightOrder.PARK
        return await follow(request, order, model, unit)

    @router.post("/wake_up", response_model=None)
    async def wake_up(
        request: Request, model: str | None = None, unit: str | None = None
    ) -> Response:
        """Wake a model, and end what /sleep holds."""
        _check_query(request, {"model", "unit"})
        return await follow(request, WeightOrder.WAKE, model, unit)

    @router.post("/pin", response_model=None)
    async def pin(request: Request, model: str | None = None, unit: str | None = None) -> Response:
        """Wake a model, and park it for nobody."""
        _check_query(request, {"model", "unit"})
        return await follow(request, WeightOrder.PIN, model, unit)

    @router.post("/unpin", response_model=None)
    async def unpin(
        request: Request, model: str | None = None, unit: str | None = None
    ) -> Response:
        """End what /pin began."""
        _check_query(request, {"model", "unit"})
        return await follow(request, WeightOrder.UNPIN, model, unit)

    @router.get("/is_sleeping", response_model=None)
    async def is_sleeping(request: Request, model: str | None = None) -> Response:
        """Tell whether no unit has the model resident, or on its way."""
        _check_query(request, {"model"})
        name = _named(backend, model)
        found = backend.model_stats(name)
        if not found:
            raise NotReady(f"no unit has reported on {name} yet")
        asleep = all(each.weights in _ASLEEP for each in found.values())
        return json_response({"is_sleeping": asleep, **_told(name, found)})

    return router


def _check_query(request: Request, known: set[str]) -> None:
    """Raise UnsupportedParameter for another field, as vLLM's `tags` of a part of the weights."""
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        raise UnsupportedParameter(f"{unknown[0]} is not supported here", unknown[0])


def _named(backend: Backend, model: str | None) -> str:
    """Return the model's name; the only one's where none is given."""
    names = [served.name for served in backend.models() if not served.base]
    if model is None and len(names) == 1:
        return names[0]
    if model is None:
        raise MissingParameter(f"{len(names)} models are served: say which, ?model=NAME", "model")
    if model not in names:
        raise ModelNotFound(f"model {model} is not served here", "model")
    return model


async def _followed(
    backend: Backend, name: str, order: WeightOrder, unit: str | None, limit_s: float
) -> dict[str, object]:
    """Give an order, wait until it is followed, and tell where the weights are then.

    Raises EngineFailure where they cannot be loaded, RequestTimeout where it takes too long; the
    order holds all the same.
    """
    try:
        async with asyncio.timeout(limit_s):
            await backend.request_move(name, order, unit)
            while True:
                found = backend.model_stats(name)
                mine = [each for unit_id, each in found.items() if unit in (None, unit_id)]
                if mine and all(_is_followed(order, each) for each in mine):
                    break
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        message = f"{order.value} of {name} is not done within {limit_s:g} s; it goes on"
        raise RequestTimeout(message) from None
    wakes = order in (WeightOrder.WAKE, WeightOrder.PIN)
    if wakes and any(each.weights == WeightState.COLD for each in mine):
        raise EngineFailure(f"the weights of {name} cannot be loaded: see the unit's log")
    return _told(name, found)


def _is_followed(order: WeightOrder, stats: ModelStats) -> bool:
    """True if the weights are where they should be, or another order replaced this one."""
    if order is WeightOrder.UNPIN:
        return True
    if order in _AWAY:
        return stats.weights in _ASLEEP or stats.order != order
    is_there = stats.weights in (WeightState.RESIDENT, WeightState.COLD)
    return is_there or stats.order in _AWAY


def _told(name: str, found: Mapping[str, ModelStats]) -> dict[str, object]:
    units = {
        unit_id: {"weights": each.weights, "order": each.order or None}
        for unit_id, each in found.items()
    }
    return {"model": name, "units": units}
