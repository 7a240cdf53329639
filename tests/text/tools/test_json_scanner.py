"""The scanner against Python's own JSON reader."""

import json
from typing import Any, NoReturn

from hypothesis import given
from hypothesis import strategies as st

from muxcluster.text.tools.json_scanner import MAX_DEPTH, JsonScanner

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)
# near JSON: its own characters in any order
NEARLY = st.text('{}[]:,"\\ \n-+.019eEtruefalsn/\x01é', max_size=30)


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def scan(text: str, step: int) -> tuple[bool, bool, int]:
    """(complete, wrong, characters taken) of `text` in pieces of `step` characters."""
    scanner, at = JsonScanner(), 0
    for end in range(step, len(text) + step, step):
        at = scanner.scan(text[:end], at)
        if scanner.is_complete or scanner.is_wrong:
            break
    return scanner.is_complete, scanner.is_wrong, at


def end_of(text: str) -> int | None:
    """Where a value ends that begins at the start of `text`, by Python's reader."""
    try:
        return json.JSONDecoder(parse_constant=_refuse).raw_decode(text)[1]
    except ValueError:
        return None


@given(VALUES, st.sampled_from([None, 1]), st.booleans(), st.integers(1, 5), st.text(max_size=3))
def test_takes_a_value_and_nothing_after_it(
    value: Any, indent: int | None, is_ascii: bool, step: int, rest: str
) -> None:
    text = json.dumps({"a": value}, indent=indent, ensure_ascii=is_ascii)
    assert scan(text + rest, step) == (True, False, len(text))


@given(NEARLY, st.integers(1, 5))
def test_is_as_strict_as_python(inside: str, step: int) -> None:
    text = '{"k":[' + inside
    is_complete, is_wrong, taken = scan(text, step)
    end = end_of(text)
    assert (taken if is_complete and not is_wrong else None) == end
    if is_wrong:
        assert end_of(text[: taken + 1] + ']}]}"}') is None


@given(NEARLY)
def test_pieces_make_no_difference(text: str) -> None:
    assert scan(text, 1) == scan(text, 3) == scan(text, len(text) + 1)


def test_deep_values_are_wrong() -> None:
    assert scan("[" * MAX_DEPTH + "]" * MAX_DEPTH, 7)[0]
    assert scan("[" * (MAX_DEPTH + 1), 7) == (False, True, MAX_DEPTH)
