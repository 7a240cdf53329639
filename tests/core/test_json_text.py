"""JSON from others: what has too many parts is refused before it is parsed."""

import gc

import pytest

from muxcluster.core.errors import InvalidJson
from muxcluster.core.inputs.json_text import MOST, SMALL_BYTES, parse_json

FORMS = {b"[": b"[],", b"{": b"{},", b",": b"1,"}


@pytest.mark.parametrize(("part", "most"), MOST, ids=str)
def test_one_part_too_many(part: bytes, most: int) -> None:
    # as many as may be, with the list around them, in no less than what is looked at
    outer = 1 if part == b"[" else 0
    if part == b'":':
        items = b'"a":1,' * (most - 1)
        text, last = b"{" + items, b'"a":1}'
    else:
        text, last = b"[" + FORMS[part] * (most - outer), b"0]"
    assert len(text) > SMALL_BYTES
    assert parse_json(text + last, "it") is not None
    more = text + (b'"a":1,' if part == b'":' else FORMS[part]) + last
    with pytest.raises(InvalidJson, match="it has .* more than"):
        parse_json(more, "it")


def test_the_collector_goes_on_afterwards() -> None:
    assert gc.isenabled()
    parse_json(b"{}", "it")
    with pytest.raises(InvalidJson):
        parse_json(b"{", "it")
    assert gc.isenabled()
    gc.disable()
    try:
        parse_json(b"{}", "it")
        assert not gc.isenabled()
    finally:
        gc.enable()
