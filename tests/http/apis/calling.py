"""Calls of the other APIs by plain HTTP, and a model for them."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.tool_models import ScriptedModel, make_model
from tests.text.tools import templates

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich 🦊"}}\n</tool_call>'
CLOCK_CALL = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
ARGUMENTS = {"city": "Zürich 🦊"}
THOUGHT = "<think>\nHm, so.\n</think>\n\n"


def make_thinking_model(directory: Path) -> Path:
    """A model that has tools and tags of reasoning."""
    return make_model(directory, templates.HERMES, plain=MARKS)


def post(model: ScriptedModel, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    """Post `body` to a route of the model's server."""
    url = f"{model.client.base_url}{path.removeprefix('/v1/')}"
    return httpx.post(url, json={"model": "tiny", **body}, headers=headers, timeout=600)


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The data of a stream's events, whose names are their types."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return events_in(answer.text)


def events_before_the_cut(
    model: ScriptedModel, path: str, body: dict[str, Any]
) -> list[dict[str, Any]]:
    """The data of a stream's events whose connection the server cuts."""
    url = f"{model.client.base_url}{path.removeprefix('/v1/')}"
    text = ""
    with (
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream("POST", url, json={"model": "tiny", **body}, timeout=600) as answer,
    ):
        for piece in answer.iter_text():
            text += piece
    return events_in(text)


def events_in(text: str) -> list[dict[str, Any]]:
    """The data of all events in the text of a stream."""
    found = []
    for block in text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found
