"""Tokens that the engine hands over together still reach the client as an event each."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from muxcluster.text.tokenizer import Tokenizer
from tests.http.fakes import FakeBackend

TEXT = "Many models share one engine"


def stream(http: TestClient, **fields: object) -> list[dict[str, Any]]:
    """All events of a streamed answer but the end mark."""
    path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
    body = {"model": "tiny", "stream": True, "max_tokens": 100, **fields}
    lines = http.post(path, json=body).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def text_of(event: dict[str, Any]) -> str:
    (choice,) = event["choices"]
    text: str = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
    return text


ASKED = [{"prompt": "x"}, {"messages": [{"role": "user", "content": "x"}]}]
Says = Callable[..., list[int]]


@pytest.mark.parametrize("width", [1, 2, 5, 100])
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("with_logprobs", [False, True])
def test_pieces_are_the_tokens(
    http: TestClient,
    backend: FakeBackend,
    tokenizer: Tokenizer,
    says: Says,
    asked: dict[str, Any],
    width: int,
    with_logprobs: bool,
) -> None:
    tokens = says(TEXT, ends=False)
    backend.width = width
    wanted: dict[str, object] = {}
    if with_logprobs:
        wanted = {"logprobs": True} if "messages" in asked else {"logprobs": 1}
    events = stream(http, **asked, **wanted)
    pieces = [text_of(event) for event in events if text_of(event)]
    assert pieces == [tokenizer.decode([token]) for token in tokens]
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons[:-1] == [None] * (len(events) - 1) and reasons[-1] == "length"


@pytest.mark.parametrize("asked", ASKED)
def test_events_that_come_together_look_like_those_that_come_alone(
    http: TestClient, backend: FakeBackend, says: Says, asked: dict[str, Any]
) -> None:
    says(TEXT, ends=False)
    answers = []
    for width in (1, 4):
        backend.width = width
        answers.append(stream(http, **asked, n=2, seed=1))
    alone, together = (
        sorted(json.dumps({**event, "id": "", "created": 0}, sort_keys=True) for event in events)
        for events in answers
    )
    assert together == alone


def test_usage_goes_up_by_one(http: TestClient, backend: FakeBackend, says: Says) -> None:
    tokens = says(TEXT, ends=False)
    backend.width = 3
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = stream(http, prompt="x", stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == [*range(1, len(tokens) + 1), len(tokens)]


def test_a_stop_string_within_tokens_that_come_together(
    http: TestClient, backend: FakeBackend, says: Says
) -> None:
    says(TEXT, ends=False)
    backend.width = 100
    events = stream(http, prompt="x", stop=["share"], logprobs=0)
    assert "".join(map(text_of, events)) == "Many models "
    assert events[-1]["choices"][0]["stop_reason"] == "share"
    assert len(backend.aborted) <= 1
