"""JSON from others: what has too many parts is refused before it is parsed."""

import gc
import json

import pytest

from muxcluster.core.errors import InvalidJson
from muxcluster.core.inputs.json_text import MOST, SMALL_BYTES, parse_json

CODE = 'f(a[1], {"b": [2]}, "c\\d")\n'
FORMS = {b"[": b"[],", b"{": b"{},", b",": b"1,"}


@pytest.mark.parametrize(("part", "most"), MOST, ids=str)
def test_one_part_too_many(part: bytes, most: int) -> None:
    # as many as may be, with the list around them, in no less than what is looked at
    outer = 1 if part == b"[" else 0
    if part == b":":
        items = b'"a":1,' * (most - 1)
        text, last = b"{" + items, b'"a":1}'
    else:
        text, last = b"[" + FORMS[part] * (most - outer), b"0]"
    assert len(text) > SMALL_BYTES
    assert parse_json(text + last, "it") is not None
    more = text + (b'"a" : 1,' if part == b":" else FORMS[part]) + last
    with pytest.raises(InvalidJson, match="it has .* more than"):
        parse_json(more, "it")


@pytest.mark.parametrize("is_ascii", [True, False])
def test_parts_in_strings_are_none(is_ascii: bool) -> None:
    """A long prompt of code, or of JSON that is a text itself."""
    code = (CODE + "é") * 100_000
    text = json.dumps({"prompt": code, "x": ["[", "\\", '"', code]}, ensure_ascii=is_ascii)
    assert parse_json(text.encode(), "it") == json.loads(text)


@pytest.mark.parametrize("start", ['"', '"\\', '{"a\\"b": "', "\\"])
def test_a_string_without_an_end_is_looked_at_once(start: str) -> None:
    """A search that began again at each quotation mark would not end."""
    with pytest.raises(InvalidJson):
        parse_json((start + '[\\"' * 300_000).encode(), "it")


def test_parts_between_strings_count() -> None:
    text = r'["\\", "\"", "[", ' + '"a",[[],[]],' * 100_000 + "0]"
    with pytest.raises(InvalidJson, match="more than 250000"):
        parse_json(text.encode(), "it")


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
