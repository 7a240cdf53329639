"""Class, priority and targets of a call reach every one of its requests, on both routes."""

from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from muxcluster.core.request import Request, Slo
from muxcluster.http.app import create_app
from tests.http.fakes import FakeBackend

PROMPT = {"prompt": "hi"}


@pytest.fixture(params=["chat", "completions"])
def ask(request, client, backend, says):
    """(**fields) -> the requests that the engine got, over real HTTP with OpenAI's client."""
    says("ok")

    def send(**fields: Any) -> list[Request]:
        before = len(backend.requests)
        if request.param == "chat":
            messages = [{"role": "user", "content": "hello"}]
            client.chat.completions.create(model="tiny", messages=messages, **fields)
        else:
            client.completions.create(model="tiny", prompt="hello", **fields)
        return backend.requests[before:]

    return send


@pytest.mark.parametrize("priority", [-(2**63), -7, 0, 5, 2**63 - 1])
def test_priority_is_taken_as_it_is(ask, priority) -> None:
    asked = ask(n=2, extra_body={"priority": priority})
    assert [each.priority for each in asked] == [priority, priority]


def test_without_fields_a_request_is_an_ordinary_one(ask) -> None:
    (asked,) = ask()
    assert (asked.priority, asked.slo, asked.service_class) == (0, None, "interactive")


@pytest.mark.parametrize(
    ("tier", "name"),
    [
        ("auto", "interactive"),
        ("default", "interactive"),
        ("priority", "interactive"),
        ("flex", "batch"),
    ],
)
def test_the_tier_is_the_class_whatever_the_priority(ask, tier, name) -> None:
    (asked,) = ask(extra_body={"service_tier": tier, "priority": -1})
    assert (asked.service_class, asked.priority) == (name, -1)


@pytest.mark.parametrize(
    ("fields", "own", "expected"),
    [
        ({"ttft": 0.5, "tpot": 0.1}, None, Slo(0.5, 0.1)),
        ({"ttft": 0.5, "tpot": 0.1}, Slo(9.0, 8.0), Slo(0.5, 0.1)),
        ({"tpot": 0.1}, Slo(9.0, 8.0), Slo(9.0, 0.1)),
        ({"ttft": 0.5}, Slo(9.0, 8.0), Slo(0.5, 8.0)),
        ({}, Slo(9.0, 8.0), Slo(9.0, 8.0)),
    ],
)
@pytest.mark.parametrize("route", ["chat/completions", "completions"])
def test_targets_are_completed_from_the_models(served, route, fields, own, expected) -> None:
    backend = FakeBackend([replace(served, slo=own)])
    backend.script = lambda request: served.eos_token_ids
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in route else PROMPT
    with TestClient(create_app(backend)) as http:
        answer = http.post(f"/v1/{route}", json={"model": "tiny", "slo": fields} | prompt)
    assert answer.status_code == 200, answer.text
    (asked,) = backend.requests
    assert asked.slo == expected


def test_a_refused_target_leaves_no_place_of_the_queue_taken(backend) -> None:
    app = create_app(backend)
    body = {"model": "tiny", "max_tokens": 2, "n": 100, "slo": {"ttft": 1}, **PROMPT}
    with TestClient(app) as client:
        for _ in range(8):  # more than the queue has
            answer = client.post("/v1/completions", json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "slo")
    assert app.state.service._gate.num_waiting("tiny", "interactive") == 0
