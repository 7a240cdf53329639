"""/v1/files: input and result files of batches."""

import re
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from muxcluster.batch.service.interface import PURPOSE, ApiObject, BatchService
from muxcluster.batch.store.files import FilePage
from muxcluster.core.errors import InvalidValue, MissingParameter, UnsupportedParameter
from muxcluster.core.inputs.clip import plain
from muxcluster.http.routes.documents import REFERENCE
from muxcluster.http.routes.form import Piece, form_pieces
from muxcluster.http.routes.generation import json_response
from muxcluster.text.schemas import ExpiryForm
from muxcluster.text.validation.body import parse

CHUNK_BYTES = 2**20  # of a file, between the server's processes
MAX_FIELD_BYTES = 256
MAX_NAME_CHARS = 255
MAX_FILES = 10_000
_PURPOSE, _EXPIRY = "purpose", "expires_after"
_FIELDS = frozenset({_PURPOSE, f"{_EXPIRY}[anchor]", f"{_EXPIRY}[seconds]"})
_WHOLE = re.compile(r"[0-9]{1,18}")
UPLOAD_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": [PURPOSE]},
                        "expires_after": {"$ref": REFERENCE.format(model="ExpiresAfter")},
                    },
                }
            }
        },
    }
}


def file_routes(batch_service: BatchService) -> APIRouter:
    router = APIRouter(prefix="/v1/files")

    @router.post("", response_model=None, openapi_extra=UPLOAD_FORM)
    async def upload(request: Request) -> Response:
        form = _UploadForm(batch_service, request.state.owner)
        try:
            async for piece in form_pieces(request):
                await form.take(piece)
            return json_response(await form.finish())
        except BaseException:
            await form.abandon()
            raise

    @router.get("", response_model=None)
    async def list_files(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=MAX_FILES)] = MAX_FILES,
        after: str | None = None,
        purpose: str | None = None,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        page = FilePage(limit + 1, after, purpose, order == "desc")
        return listing(await batch_service.files(request.state.owner, page), limit)

    @router.get("/{file_id}", response_model=None)
    async def one_file(request: Request, file_id: str) -> Response:
        return json_response(await batch_service.file(request.state.owner, file_id))

    @router.delete("/{file_id}", response_model=None)
    async def delete(request: Request, file_id: str) -> Response:
        return json_response(await batch_service.delete(request.state.owner, file_id))

    @router.get("/{file_id}/content", response_model=None)
    async def content(request: Request, file_id: str) -> Response:
        owner = request.state.owner
        file = await batch_service.file(owner, file_id)
        headers = {"Content-Length": str(file["bytes"])}
        data = _content(batch_service, owner, file)
        return StreamingResponse(data, headers=headers, media_type="application/octet-stream")

    return router


async def _content(
    batch_service: BatchService, owner: str, file: ApiObject
) -> AsyncGenerator[bytes, None]:
    """Yield a file's bytes; raise if it ends too early, as its length was sent in the head."""
    offset = 0
    while offset < file["bytes"]:
        data = await batch_service.read(owner, file["id"], offset, CHUNK_BYTES)
        if not data:
            return
        offset += len(data)
        yield data


def listing(found: list[ApiObject], limit: int) -> Response:
    """Return a page of at most `limit` of the objects found, which may be one more."""
    data: list[Any] = found[:limit]
    return json_response(
        {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": len(found) > limit,
        }
    )


class _UploadForm:
    """A form with a file and its purpose in any order; passes the file on as it comes."""

    def __init__(self, batch_service: BatchService, owner: str) -> None:
        self._batch_service = batch_service
        self._owner = owner
        self._fields: dict[str, bytes] = {}
        self._name = ""
        self._upload_id: str | None = None
        self._waiting = bytearray()

    async def take(self, piece: Piece) -> None:
        """Take a piece. Raises RequestError for another form, and what the batch service raises."""
        if piece.name == "file":
            await self._take_file(piece)
        elif piece.name in _FIELDS:
            value = self._fields.get(piece.name, b"") + piece.data
            if len(value) > MAX_FIELD_BYTES:
                raise InvalidValue(f"{piece.name}: too long", piece.name)
            self._fields[piece.name] = value
        else:
            raise UnsupportedParameter(f"unknown field {plain(piece.name)}", plain(piece.name))

    async def _take_file(self, piece: Piece) -> None:
        if piece.is_first:
            if self._upload_id is not None:
                raise InvalidValue("one file at a time", "file")
            self._name = (piece.file_name or "upload.jsonl")[:MAX_NAME_CHARS]
            self._upload_id = await self._batch_service.begin(self._owner)
        self._waiting += piece.data
        if len(self._waiting) >= CHUNK_BYTES:
            await self._send()

    async def _send(self) -> None:
        assert self._upload_id is not None
        data, self._waiting = bytes(self._waiting), bytearray()
        await self._batch_service.add(self._upload_id, data)

    async def finish(self) -> ApiObject:
        """Return the file object. Raises as `take`."""
        if self._upload_id is None:
            raise MissingParameter("missing required field file", "file")
        purpose = self._field(_PURPOSE)
        if not purpose:
            raise MissingParameter("missing required field purpose", "purpose")
        lifetime_s = self._lifetime_s()
        if self._waiting:
            await self._send()
        return await self._batch_service.finish(self._upload_id, self._name, purpose, lifetime_s)

    def _field(self, name: str) -> str | None:
        value = self._fields.get(name)
        return None if value is None else value.decode(errors="replace")

    def _lifetime_s(self) -> int | None:
        """Return the seconds of `expires_after`; None without it. Raises RequestError."""
        given = {name: self._field(f"{_EXPIRY}[{name}]") for name in ("anchor", "seconds")}
        if not any(value is not None for value in given.values()):
            return None
        fields = {
            name: int(value) if name == "seconds" and _WHOLE.fullmatch(value) else value
            for name, value in given.items()
            if value is not None
        }
        return parse(ExpiryForm, {_EXPIRY: fields}).expires_after.seconds

    async def abandon(self) -> None:
        """Forget the upload."""
        if self._upload_id is not None:
            await self._batch_service.abandon(self._upload_id)
