"""Reads a request's JSON body."""

import re

from starlette.requests import Request

from muxcluster.core.errors import UnsupportedMediaType
from muxcluster.core.inputs.clip import clip
from muxcluster.core.inputs.json_text import parse_json

_JSON_TYPE = re.compile(r"application/(?:json|[\w.!#$&^+-]+\+json)")


async def json_body(request: Request) -> object:
    """Return the decoded body.

    Raises UnsupportedMediaType unless Content-Type is JSON, InvalidJson, or what the body limits
    raise. As in vLLM a missing Content-Type is refused: browsers send none with bodies that a
    foreign page may post without a preflight request.
    """
    given = request.headers.get("content-type", "")
    if not _JSON_TYPE.fullmatch(given.partition(";")[0].strip().lower()):
        found = f"not {clip(given)}" if given else "but is missing"
        raise UnsupportedMediaType(f"Content-Type must be application/json, {found}")
    return parse_json(await request.body(), "the body")
