"""Constraints over HTTP: they reach the engine for every choice, and what is wrong is a 400."""

import json

import openai
import pytest
from starlette.testclient import TestClient

from muxcluster.constraints import grammars
from muxcluster.core.events import Rejected, TokenDelta
from muxcluster.core.sampling import Constraint
from muxcluster.http.app import create_app
from muxcluster.http.settings import ApiSettings, QueueLimits

USER = [{"role": "user", "content": "Say yes"}]
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}}
WANTED = Constraint(grammars.json_schema(SCHEMA, "x"))
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
BAD = {"type": "object", "properties": {"age": {"type": "integr"}}}
BAD_FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": BAD}}
TOO_DEEP = json.loads('{"items":' * 300 + "{}" + "}" * 300)


def constraints(backend):
    return [request.sampling.constraint for request in backend.requests]


@pytest.mark.parametrize("is_stream", [False, True])
def test_every_choice_of_a_chat_has_the_constraint(client, says, backend, is_stream):
    says('{"age": 7}')
    answer = client.chat.completions.create(
        model="tiny", messages=USER, n=3, response_format=FORMAT, logprobs=True, stream=is_stream
    )
    if is_stream:
        list(answer)
    assert constraints(backend) == [WANTED] * 3


def test_completions_take_it_too(client, says, backend):
    says("yes")
    client.completions.create(
        model="tiny", prompt=["a", "b"], echo=True, extra_body={"guided_choice": ["yes", "no"]}
    )
    client.completions.create(
        model="tiny", prompt="a", stop="s", extra_body={"structured_outputs": {"regex": "y.s"}}
    )
    client.completions.create(model="tiny", prompt="a")
    choice = Constraint(grammars.choice(["yes", "no"], "x"))
    regex = Constraint(grammars.regex("y.s", "x"))
    assert constraints(backend) == [choice, choice, regex, None]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": BAD_FORMAT}, "response_format.json_schema.schema"),
        ({"structured_outputs": {"json": TOO_DEEP}}, "structured_outputs.json"),
        ({"guided_regex": ""}, "guided_regex"),
    ],
    ids=["type", "deep", "empty"],
)
def test_a_wrong_one_is_400_before_any_header(client, backend, body, param, is_stream):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(
            model="tiny", messages=USER, stream=is_stream, extra_body=body
        )
    assert (error.value.code, error.value.type) == ("invalid_value", "invalid_request_error")
    assert error.value.param == param
    assert backend.requests == []


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_grammar_that_the_unit_refuses_is_400(client, backend, is_stream):
    message = "the grammar takes more than 2 s to compile"
    backend.first = TokenDelta(rejected=Rejected("r", "invalid_value", message))
    with pytest.raises(openai.BadRequestError, match="takes more than 2 s") as error:
        client.chat.completions.create(
            model="tiny", messages=USER, response_format=FORMAT, stream=is_stream
        )
    assert error.value.code == "invalid_value"


def test_a_wrong_one_leaves_its_place_in_the_queue(backend, says):
    says("yes")
    app = create_app(backend, ApiSettings(queues=QueueLimits(interactive=1)))
    body = {"model": "tiny", "messages": USER}
    with TestClient(app) as http:
        for wanted, status in ((BAD_FORMAT, 400), (BAD_FORMAT, 400), (FORMAT, 200)):
            answer = http.post("/v1/chat/completions", json=body | {"response_format": wanted})
            assert answer.status_code == status, answer.text
