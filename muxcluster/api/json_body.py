"""Reading a request's JSON."""

import json

from starlette.requests import Request

from muxcluster.core.errors import InvalidJson


async def json_body(request: Request) -> object:
    """The decoded body. Raises InvalidJson, or ContentTooLarge from the body limit.

    The standard library's parser on purpose: it lets NaN through to the check that names the
    field.
    """
    data = await request.body()
    try:
        # from bytes the parser would also take UTF-16, and surrogates written as UTF-8
        value: object = json.loads(data.decode("utf-8-sig"))
        if b"\\ud" in data.lower():
            # a lone surrogate escape decodes to text that no tokenizer can encode
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidJson(f"the body is not valid JSON: {error}") from None
    return value
