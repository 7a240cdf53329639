"""JSON from other processes."""

import json

from muxcluster.core.errors import InvalidJson

# Empty lists and strings cost 3 bytes each to send, and 60 to keep while nothing else runs. No
# prompt has so many tokens, and no schema so many parts.
MOST_CONTAINERS = 1_000_000  # brackets in strings count, too
MOST_VALUES = 4_000_000


def parse_json(data: bytes, what: str) -> object:
    """Decode `data`, UTF-8 JSON. Raises InvalidJson, whose message begins with `what`.

    The standard library's parser on purpose: it lets NaN through to the check that names the
    field.
    """
    _check_size(data, what)
    try:
        # from bytes the parser would also take UTF-16, and surrogates written as UTF-8
        value: object = json.loads(data.decode("utf-8-sig"))
        if b"\\ud" in data.lower():
            # a lone surrogate escape decodes to text that no tokenizer can encode
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidJson(f"{what} is not valid JSON: {error}") from None
    return value


def _check_size(data: bytes, what: str) -> None:
    """Raise InvalidJson for more parts than a request can need; found without parsing."""
    if len(data) < MOST_CONTAINERS:
        return
    if data.count(b"[") + data.count(b"{") > MOST_CONTAINERS:
        raise InvalidJson(f"{what} has more than {MOST_CONTAINERS} opening brackets")
    if data.count(b",") > MOST_VALUES:
        raise InvalidJson(f"{what} has more than {MOST_VALUES} commas")
