"""The scenarios' own measures: a token lost, one repeated, the longest stall."""

from tests.cluster_hosts.load import Differences, StreamResult, differences


def stream(text: str, times: tuple[float, ...] = ()) -> StreamResult:
    return StreamResult(tokens=list(text), times=list(times))


def test_equal_streams_do_not_differ() -> None:
    assert differences([stream("abcabc")], [stream("abcabc")]) == Differences(0, 0)


def test_lost_repeated_and_wrong_tokens_are_counted_over_all_streams() -> None:
    expected = [stream("abcdef"), stream("abcdef"), stream("abcdef")]
    found = [stream("abef"), stream("abcdcdef"), stream("abXdef")]
    assert differences(expected, found) == Differences(num_lost=3, num_repeated=3)


def test_the_longest_stall_counts_from_the_request() -> None:
    assert stream("", (10.0, 13.0, 13.5)).longest_stall_s() == 3.0
    assert stream("", (10.0,)).longest_stall_s() == 0.0
