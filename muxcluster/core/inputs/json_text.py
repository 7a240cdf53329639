"""JSON from other processes."""

import contextlib
import gc
import json
import re
from collections.abc import Iterator

from muxcluster.core.errors import InvalidJson

# Most parts of a text, found by counting before it is parsed, which holds up everything else. An
# empty list costs 3 bytes to send and 60 to keep. No prompt has so many tokens, no schema so many
# names.
MOST = ((b"[", 250_000), (b"{", 250_000), (b":", 200_000), (b",", 4_000_000))
SMALL_BYTES = 200_000  # fewer have no room for so many
# With or without its end, so that no byte is looked at twice
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
MOST_STRINGS = 100_000  # that are left out of a count


def parse_json(data: bytes, what: str) -> object:
    """Decode `data`, UTF-8 JSON. Raises InvalidJson, whose message begins with `what`.

    The standard library's parser on purpose: it lets NaN through to the check that names the
    field.
    """
    _check_size(data, what)
    try:
        # from bytes the parser would also take UTF-16, and surrogates written as UTF-8
        with _without_collection():
            value: object = json.loads(data.decode("utf-8-sig"))
        if b"\\ud" in data.lower():
            # a lone surrogate escape decodes to text that no tokenizer can encode
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidJson(f"{what} is not valid JSON: {error}") from None
    return value


def _check_size(data: bytes, what: str) -> None:
    """Raise InvalidJson for more parts than a request can need; those in strings are none."""
    if len(data) <= SMALL_BYTES or not _too_many(data):
        return
    if (found := _too_many(STRING.sub(b"", data, MOST_STRINGS))) is not None:
        part, most = found
        raise InvalidJson(f"{what} has {part.decode()} more than {most} times")


def _too_many(data: bytes) -> tuple[bytes, int] | None:
    """Return the first of `MOST` that `data` has more of, None for none."""
    return next((each for each in MOST if data.count(each[0]) > each[1]), None)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Look for no garbage meanwhile: each new list would be visited again and again, to no end."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
