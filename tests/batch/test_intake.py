"""Input files: what runs, and what each wrong line is told."""

from pathlib import Path

import pytest

from muxcluster.batch.store.intake import Intake, Limits
from muxcluster.batch.store.job import Status, window_s
from muxcluster.batch.store.lines import read_lines
from muxcluster.batch.store.store import BatchStore
from muxcluster.core.errors import InvalidValue
from tests.batch.jobs import MODELS, line_of, read_results, submit, taken_in


@pytest.fixture
def store(tmp_path: Path):
    opened = BatchStore(tmp_path / "store")
    yield opened
    opened.close()


GIFT = b'{"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": '
WRONG = {
    "is empty": b"",
    "not valid JSON": b"{not json",
    "expected a JSON object": b"[1]",
    "can't decode byte 0xff": b'{"custom_id": "\xff"}',
    "missing required field custom_id": line_of(None),  # type: ignore[arg-type]
    "custom_id: expected text, found 7": line_of(7),  # type: ignore[arg-type]
    "more than 512": line_of("x" * 513),
    "expected POST, found 'GET'": line_of("a", method="GET"),
    "expected POST, found None": line_of("b", method=None),
    "found 'file:///etc/passwd'": line_of("c", url="file:///etc/passwd"),
    "found '/v1/moderations'": line_of("d", url="/v1/moderations"),
    "body: expected a JSON object, found 'text'": line_of("e", body="text"),
    "missing required field body.model": line_of("f", body={"prompt": "x"}),
    "model 'gpt-9' is not served here": line_of("g", body={"model": "gpt-9", "prompt": "x"}),
    "a batch is not streamed": line_of("h", body={"model": "tiny", "stream": True}),
    "at most 2000 are read": line_of("i", body={"model": "tiny", "prompt": "x" * 2000}),
    "surrogates": GIFT + b'{"model": "tiny", "prompt": "\\ud800"}}',
}


def test_every_wrong_line_has_its_reason_and_its_number_and_the_rest_runs(store) -> None:
    lines = [line_of("good-1"), *WRONG.values(), line_of("good-2")]
    limits = Limits(line_bytes=2000)
    batch = taken_in(store, lines, limits)
    assert batch.status is Status.IN_PROGRESS
    assert (batch.num_total, batch.num_failed) == (len(lines), len(WRONG))
    assert [each.line for each in store.pending("b")] == [1, len(lines)]
    told = read_results(store.path_of(batch.error_file_id))
    for number, (words, each) in enumerate(zip(WRONG, told, strict=True), start=2):
        assert each["line"] == number
        assert each["response"] is None
        assert each["error"]["message"].startswith(f"line {number}: ")
        assert words in each["error"]["message"]
    assert [each["custom_id"] for each in told if each["custom_id"]] == list("abcdefgh")


def test_nesting_without_an_end_is_refused(store) -> None:
    deep = GIFT + b"[" * 200_000 + b"]" * 200_000 + b"}"
    batch = taken_in(store, [deep, line_of("good")])
    (told,) = read_results(store.path_of(batch.error_file_id))
    assert told["error"]["code"] == "invalid_json"
    assert batch.status is Status.IN_PROGRESS


def test_of_equal_names_the_first_counts_whatever_is_wrong_with_it(store) -> None:
    wrong = line_of("one", body={"model": "gpt-9"})
    batch = taken_in(store, [wrong, line_of("one"), line_of("two"), line_of("two")])
    told = read_results(store.path_of(batch.error_file_id))
    assert [(each["line"], each["custom_id"]) for each in told] == [
        (1, "one"),
        (2, None),
        (4, None),
    ]
    assert "'one' is that of line 1 already" in told[1]["error"]["message"]
    assert "'two' is that of line 3 already" in told[2]["error"]["message"]
    assert [each.line for each in store.pending("b")] == [3]


def test_an_endpoint_binds_all_lines(store) -> None:
    chat = line_of("b", url="/v1/chat/completions", body={"model": "other", "messages": []})
    batch = taken_in(store, [line_of("a"), chat])
    assert batch.num_failed == 0
    assert [each.model for each in store.pending("b")] == ["tiny", "other"]


@pytest.mark.parametrize("lines", [[], [b""], [b"{"], [line_of("a", method="GET")]])
def test_a_file_without_a_request_fails(store, lines: list[bytes]) -> None:
    batch = taken_in(store, lines)
    assert batch.status is Status.FAILED
    assert "no line" in batch.problem
    assert len(read_results(store.path_of(batch.error_file_id))) == len(lines)


def test_a_file_of_too_many_lines_fails_whole(store) -> None:
    batch = taken_in(store, [b"{"] + [line_of(str(i)) for i in range(5)], Limits(lines=5))
    assert batch.status is Status.FAILED
    assert "more than 5 lines" in batch.problem
    assert (batch.num_total, store.pending("b")) == (0, [])
    assert not read_results(store.path_of(batch.error_file_id))


def test_reading_again_after_an_interruption_gives_the_same(store) -> None:
    lines = [line_of("a"), b"{", line_of("a"), line_of("b")]
    batch = submit(store, lines)
    intake = Intake(store, batch, MODELS, Limits())
    with store.path_of("in-b").open("rb") as file:
        intake._enter(list(read_lines(file, 1000))[:3])
    again = Intake(store, batch, MODELS, Limits()).run(3)
    assert (again.num_total, again.num_failed) == (4, 2)
    assert len(read_results(store.path_of(batch.error_file_id))) == 2


@pytest.mark.parametrize(("text", "seconds"), [("1m", 60), ("24h", 86400), ("30d", 2592000)])
def test_windows(text: str, seconds: int) -> None:
    assert window_s(text) == seconds


@pytest.mark.parametrize("text", ["", "24", "0h", "31d", "-1h", "1w", "24h ", "٣h", "9" * 30 + "d"])
def test_windows_that_are_none(text: str) -> None:
    with pytest.raises(InvalidValue, match="completion_window"):
        window_s(text)
