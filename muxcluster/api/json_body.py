"""Reading a request's JSON."""

from starlette.requests import Request

from muxcluster.core.jsontext import parse_json


async def json_body(request: Request) -> object:
    """The decoded body. Raises InvalidJson, or ContentTooLarge from the body limit."""
    return parse_json(await request.body(), "the body")
