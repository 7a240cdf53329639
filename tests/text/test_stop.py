"""The stop matcher against a brute-force search of the whole text."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muxcluster.text.stop import StopMatcher

ALPHABET = "ab"
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=4)
CHUNKS = st.lists(st.text(ALPHABET, max_size=6), max_size=12)


def first_match(text: str, stops: list[str]) -> tuple[int, int] | None:
    """(start, end) of the match that ends first, the longest of those."""
    spans = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return (min(spans)[1], min(spans)[0]) if spans else None


@example(stops=["b", "ab"], chunks=["ab"], include=False)
@given(stops=STOPS, chunks=CHUNKS, include=st.booleans())
def test_against_search(stops, chunks, include) -> None:
    matcher = StopMatcher(stops, include)
    shown = ""
    for chunk in chunks:
        shown += matcher.push(chunk)
    shown += matcher.finish()
    whole = "".join(chunks)
    match = first_match(whole, stops)
    if match is None:
        assert (shown, matcher.matched) == (whole, None)
    else:
        start, end = match
        assert shown == whole[: end if include else start]
        assert matcher.matched == whole[start:end]


@given(stops=STOPS, chunks=CHUNKS)
def test_holds_back_exactly_what_may_become_a_stop(stops, chunks) -> None:
    matcher, shown, fed = StopMatcher(stops), "", ""
    for chunk in chunks:
        shown += matcher.push(chunk)
        fed += chunk
        if matcher.matched is not None:
            return
        beginnings = [stop[:length] for stop in stops for length in range(1, len(stop))]
        held = max((len(part) for part in beginnings if fed.endswith(part)), default=0)
        assert shown == fed[: len(fed) - held]


def test_nothing_is_shown_after_a_match() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("one E") == "one "
    assert matcher.push("ND two") == ""
    assert matcher.push("three") == ""
    assert matcher.finish() == ""
    assert matcher.matched == "END"


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])
