"""JSON from other processes."""

import json

from muxcluster.core.errors import InvalidJson


def parse_json(data: bytes, what: str) -> object:
    """Decode `data`, UTF-8 JSON. Raises InvalidJson, whose message begins with `what`.

    The standard library's parser on purpose: it lets NaN through to the check that names the
    field.
    """
    try:
        # from bytes the parser would also take UTF-16, and surrogates written as UTF-8
        value: object = json.loads(data.decode("utf-8-sig"))
        if b"\\ud" in data.lower():
            # a lone surrogate escape decodes to text that no tokenizer can encode
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidJson(f"{what} is not valid JSON: {error}") from None
    return value
