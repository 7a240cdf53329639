"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from muxcluster.core.errors import InvalidValue, PermissionDenied, RequestTimeout
from muxcluster.core.inputs.adapters.load import AdapterLoad
from muxcluster.core.served import ServedModel
from muxcluster.http.calls.model_text import ModelTexts
from muxcluster.http.routes.documents import documented
from muxcluster.http.routes.json_body import json_body
from muxcluster.http.settings import ApiSettings
from muxcluster.text.schemas import LoadAdapterBody, UnloadAdapterBody
from muxcluster.text.validation.body import parse

POLL_S = 0.05  # until this server knows what has changed
FOLLOWED_S = 30.0  # longest time for that


class AdapterControl(Protocol):
    """Loads and unloads adapters while their bases are served."""

    async def load_adapter(self, asked: AdapterLoad) -> ServedModel:
        """Serve an adapter from now on, everywhere; return it as it is served.

        Raises InvalidValue naming file and tensor, ModelNotFound, NotReady.
        """
        ...

    async def unload_adapter(self, name: str) -> None:
        """Serve an adapter no longer. Raises InvalidValue, ModelNotFound, NotReady."""
        ...


def adapter_routes(
    control: AdapterControl | None, texts: ModelTexts, settings: ApiSettings
) -> APIRouter:
    """Return the routes; `Edge` lets the admin key alone through. control: None where none is."""
    router = APIRouter()

    def controlled() -> AdapterControl:
        if control is None:
            raise InvalidValue(
                "adapters come and go on servers of `muxcluster serve` and `up` alone"
            )
        return control

    @router.post(
        "/v1/load_lora_adapter", response_model=None, openapi_extra=documented(LoadAdapterBody)
    )
    async def load(request: Request) -> Response:
        """Serve a LoRA adapter in a folder of the nodes as a model of its own."""
        body = parse(LoadAdapterBody, await json_body(request), lenient=settings.lenient)
        path = await asyncio.to_thread(_permitted, body.lora_path, settings.adapter_folders)
        asked = AdapterLoad(body.lora_name, path, body.base_model_name, bool(body.load_inplace))
        served = await controlled().load_adapter(asked)
        await _followed(lambda: _served(texts, served.name) == served)
        return PlainTextResponse(f"Success: LoRA adapter '{served.name}' added successfully.")

    @router.post(
        "/v1/unload_lora_adapter", response_model=None, openapi_extra=documented(UnloadAdapterBody)
    )
    async def unload(request: Request) -> Response:
        """Serve a LoRA adapter no longer; requests that were accepted end with it."""
        body = parse(UnloadAdapterBody, await json_body(request), lenient=settings.lenient)
        await controlled().unload_adapter(body.lora_name)
        await _followed(lambda: _served(texts, body.lora_name) is None)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    return router


def _permitted(path: str, folders: tuple[str, ...]) -> str:
    """Return the absolute path of an adapter below one of the folders.

    A relative one starts from the first folder. Raises PermissionDenied for any other place.
    """
    if not folders:
        raise PermissionDenied("no adapter may be loaded: server.adapter_folders is not set")
    if "\0" in path:
        raise InvalidValue("lora_path must not hold NUL", "lora_path")
    try:
        found = Path(folders[0], path).resolve()
    except (OSError, RuntimeError):  # Python 3.11 says RuntimeError of links that form a loop
        raise InvalidValue("lora_path cannot be resolved", "lora_path") from None
    if not any(found.is_relative_to(Path(folder).resolve()) for folder in folders):
        message = "lora_path lies below none of server.adapter_folders"
        raise PermissionDenied(message, "lora_path")
    return str(found)


def _served(texts: ModelTexts, name: str) -> ServedModel | None:
    """Return what this server serves under a name now."""
    text = texts.offered((name,)).get(name)
    return None if text is None else text.served


async def _followed(is_done: Callable[[], bool]) -> None:
    """Wait until this server does what all will do.

    Raises RequestTimeout where that takes too long; it comes all the same.
    """
    try:
        async with asyncio.timeout(FOLLOWED_S):
            while not is_done():
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        message = f"this server does not know of it after {FOLLOWED_S:g} s; it will"
        raise RequestTimeout(message) from None
