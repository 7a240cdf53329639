"""Anthropic's Messages API over real HTTP, against a model that says what it is told."""

import json

import pytest
from starlette.testclient import TestClient

from muxcluster.core.errors import EngineFailure
from muxcluster.http.app import create_app
from muxcluster.http.settings import ApiSettings
from tests.http.apis.calling import (
    ARGUMENTS,
    CALL,
    CLOCK_CALL,
    SCHEMA,
    THOUGHT,
    events_before_the_cut,
    events_of,
    post,
)
from tests.http.fakes import FakeBackend, served_model

PATH = "/v1/messages"
TOOLS = [
    {"name": "get_weather", "description": "Tells it.", "input_schema": SCHEMA},
    {"name": "clock", "input_schema": {"type": "object", "properties": {}}},
]
ASKED = {"max_tokens": 300, "messages": [{"role": "user", "content": "Hi"}]}


def ask(model, **fields):
    answer = post(model, PATH, {**ASKED, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(model, **fields):
    """The message that a stream adds up to, as Anthropic's client puts it together."""
    found = events_of(post(model, PATH, {**ASKED, **fields, "stream": True}))
    assert [event["type"] for event in (found[0], found[-2], found[-1])] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    message = found[0]["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    blocks, arguments = message["content"], ""
    is_open = False
    for event in found[1:-2]:
        if event["type"] == "content_block_start":
            assert not is_open and event["index"] == len(blocks)
            blocks.append(event["content_block"])
            is_open, arguments = True, ""
            continue
        assert is_open and event["index"] == len(blocks) - 1
        if event["type"] == "content_block_stop":
            is_open = False
            if blocks[-1]["type"] == "tool_use":
                blocks[-1]["input"] = json.loads(arguments)
            continue
        match event["delta"]:
            case {"type": "text_delta", "text": text}:
                blocks[-1]["text"] += text
            case {"type": "thinking_delta", "thinking": text}:
                blocks[-1]["thinking"] += text
            case {"type": "input_json_delta", "partial_json": text}:
                arguments += text
            case _:
                raise AssertionError(event)
    assert not is_open
    message.update(found[-2]["delta"])
    message["usage"].update(found[-2]["usage"])
    return message


def without_ids(message):
    """A message without what differs between two answers."""
    content = [{**block, "id": ""} if "id" in block else block for block in message["content"]]
    return {**message, "id": "", "content": content}


def test_a_whole_message(model) -> None:
    model.says = ["Hello there."]
    found = ask(model, system="Be brief.", temperature=0, top_p=0.5, top_k=7)
    assert found["content"] == [{"type": "text", "text": "Hello there."}]
    assert (found["type"], found["role"], found["model"]) == ("message", "assistant", "tiny")
    assert (found["stop_reason"], found["stop_sequence"]) == ("end_turn", None)
    assert found["id"].startswith("msg_")
    request = model.backend.requests[-1]
    num_said = len(model.tokenizer.encode("Hello there.", False)) + 1
    assert found["usage"]["output_tokens"] == num_said
    assert found["usage"]["cache_read_input_tokens"] == 3
    assert found["usage"]["input_tokens"] == len(request.prompt_tokens) - 3
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0, 0.5, 7)
    assert sampling.max_tokens == 300
    assert model.prompt() == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("width", [1, 4, 100])
@pytest.mark.parametrize(
    ("says", "fields"),
    [
        ("Hello there.", {}),
        ("", {}),
        (f"{THOUGHT}Yes.", {}),
        (f"{THOUGHT}Yes.", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        (f"{THOUGHT}Let me see.\n{CALL}\n{CLOCK_CALL}", {"tools": TOOLS}),
        (CALL, {"tools": TOOLS, "thinking": {"type": "adaptive"}}),
        ("One, two and three", {"stop_sequences": ["two", "x"]}),
        ("Hello there, how are you?", {"max_tokens": 4}),
    ],
)
def test_a_stream_adds_up_to_the_whole_message(model, says, fields, width) -> None:
    model.says, model.backend.width = [says], width
    try:
        assert without_ids(streamed(model, **fields)) == without_ids(ask(model, **fields))
    finally:
        model.backend.width = 1


def test_what_ends_a_message(model) -> None:
    model.says = ["One, two and three"]
    found = ask(model, stop_sequences=["two"])
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", "two")
    assert found["content"] == [{"type": "text", "text": "One, "}]
    assert ask(model, max_tokens=2)["stop_reason"] == "max_tokens"
    model.says = [f"{CALL}\n{CLOCK_CALL}"]
    found = ask(model, tools=TOOLS)
    assert found["stop_reason"] == "tool_use"
    assert [block["input"] for block in found["content"]] == [ARGUMENTS, {}]
    assert [block["name"] for block in found["content"]] == ["get_weather", "clock"]
    one = {"type": "auto", "disable_parallel_tool_use": True}
    assert len(ask(model, tools=TOOLS, tool_choice=one)["content"]) == 1


def test_thinking_is_shown_where_it_is_asked_for(model) -> None:
    model.says = [f"{THOUGHT}Yes."]
    text = {"type": "text", "text": "Yes."}
    thinking = {"type": "thinking", "thinking": "Hm, so.", "signature": ""}
    for asked in ({"type": "enabled", "budget_tokens": 9}, {"type": "adaptive"}):
        assert ask(model, thinking=asked)["content"] == [thinking, text]
    assert ask(model)["content"] == [text]
    assert ask(model, thinking={"type": "adaptive", "display": "omitted"})["content"] == [text]
    model.says = ["Yes."]
    assert ask(model, thinking={"type": "disabled"})["content"] == [text]
    assert model.prompt().endswith("<think>\n\n</think>\n\n")


def test_a_tool_loop(model) -> None:
    model.says = [f"{THOUGHT}Let me see.\n{CALL}"]
    user = {"role": "user", "content": "Weather?"}
    thinking = {"type": "enabled", "budget_tokens": 9}
    found = ask(model, tools=TOOLS, messages=[user], thinking=thinking)
    assert [block["type"] for block in found["content"]] == ["thinking", "text", "tool_use"]
    result = {
        "type": "tool_result",
        "tool_use_id": found["content"][2]["id"],
        "content": [{"type": "text", "text": "12 °C"}, {"type": "text", "text": "wind"}],
    }
    answer = {"role": "assistant", "content": found["content"]}
    again = {"role": "user", "content": [result, {"type": "text", "text": "And then?"}]}
    model.says = ["Cold."]
    ask(model, tools=TOOLS, messages=[user, answer, again], thinking=thinking)
    assert model.prompt().endswith(
        f"<|im_start|>assistant\n{THOUGHT}Let me see.\n{CALL}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n12 °C\nwind\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n"
    )
    failed = {**result, "content": "no network", "is_error": True}
    ask(model, tools=TOOLS, messages=[user, answer, {"role": "user", "content": [failed]}])
    assert "<tool_response>\nError: no network\n</tool_response>" in model.prompt()


def test_choices_of_tools_are_those_of_chats(model) -> None:
    model.says = [CALL]
    for choice, names in (
        ({"type": "any"}, {"get_weather", "clock"}),
        ({"type": "tool", "name": "clock"}, {"clock"}),
    ):
        ask(model, tools=TOOLS, tool_choice=choice)
        grammar = model.backend.requests[-1].sampling.constraint.grammar
        assert {name for name in ("get_weather", "clock") if name in grammar} == names
    ask(model, tools=TOOLS, tool_choice={"type": "auto"})
    assert model.backend.requests[-1].sampling.constraint is None
    found = ask(model, tools=TOOLS, tool_choice={"type": "none"})
    assert found["content"] == [{"type": "text", "text": CALL}]
    assert "# Tools" not in model.prompt()


def test_an_answer_that_the_client_has_begun_goes_on(model) -> None:
    model.says = [" in Rome."]
    begun = [*ASKED["messages"], {"role": "assistant", "content": "It is"}]
    assert ask(model, messages=begun)["content"] == [{"type": "text", "text": " in Rome."}]
    assert model.prompt().endswith("<|im_start|>assistant\nIt is")


def test_a_call_that_the_limit_cuts_is_text_in_a_whole_message(model) -> None:
    start = '<tool_call>\n{"name": "get_weather", "arguments": {"ci'
    model.says = [CALL]
    cut = len(model.tokenizer.encode(start, False))
    found = ask(model, tools=TOOLS, max_tokens=cut)
    assert (found["content"], found["stop_reason"]) == (
        [{"type": "text", "text": start}],
        "max_tokens",
    )


def test_an_output_format(model) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    model.says = ['{"city": "Rome"}']
    ask(model, output_config={"format": form}, thinking={"type": "disabled"})
    assert "city" in model.backend.requests[-1].sampling.constraint.grammar


def test_classes_and_other_fields_of_the_server(model) -> None:
    model.says = ["ok"]
    ask(model, service_tier="flex", priority=3, seed=5, cache_salt="a", metadata={"user_id": "u"})
    request = model.backend.requests[-1]
    assert (request.service_class.value, request.priority) == ("batch", 3)
    assert (request.sampling.seed, request.cache_salt) == (5, "a")
    ask(model, service_tier="standard_only")
    assert model.backend.requests[-1].service_class.value == "interactive"


def test_tokens_are_counted_as_they_would_be_used(model) -> None:
    model.says = ["ok"]
    prompt = {"messages": [{"role": "user", "content": "Weather?"}], "tools": TOOLS, "system": "S"}
    num_requests = len(model.backend.requests)
    counted = post(model, f"{PATH}/count_tokens", prompt).json()
    assert len(model.backend.requests) == num_requests
    ask(model, **prompt)
    assert counted == {"input_tokens": len(model.backend.requests[-1].prompt_tokens)}
    many = {"messages": [{"role": "user", "content": "word " * 5000}]}
    assert post(model, f"{PATH}/count_tokens", many).json()["input_tokens"] > 4096


def test_an_error_within_a_stream_is_an_event(model) -> None:
    model.says = ["Hello there, how are you?"]
    model.backend.error, model.backend.error_after = EngineFailure("it broke"), 3
    try:
        found = events_before_the_cut(model, PATH, {**ASKED, "stream": True})
    finally:
        model.backend.error = None
    assert [event["type"] for event in found[:3]] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
    ]
    assert found[-1] == {"type": "error", "error": {"type": "api_error", "message": "it broke"}}


@pytest.fixture(scope="module")
def http(directory):
    backend = FakeBackend([served_model(directory)])
    with TestClient(create_app(backend, ApiSettings())) as http:
        yield http, backend


def user(*blocks):
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def assistant(*blocks):
    return {"messages": [{"role": "assistant", "content": list(blocks)}]}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
RESULT = {"type": "tool_result", "tool_use_id": "x"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"model": None}, "model"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10_000}, "context"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["Hi"]}, "messages[0]"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x"}] * 20_000}, "at most"),
        (user(), "messages[0].content"),
        (user({"text": "x"}), "messages[0].content[0].type"),
        (user({"type": "text"}), "messages[0].content[0].text"),
        (user(IMAGE), "messages[0].content[0]: image"),
        (user({"type": "document"}), "messages[0].content[0]: document"),
        (user({"type": "tool_result"}), "messages[0].content[0].tool_use_id"),
        (user({**RESULT, "content": [IMAGE]}), "messages[0].content[0].content[0]: image"),
        (user({**RESULT, "content": [{"type": "text"}] * 20_000}), "at most"),
        (user({**RESULT, "is_error": "yes"}), "messages[0].content[0].is_error"),
        (assistant({"type": "redacted_thinking", "data": ""}), "redacted_thinking"),
        (assistant({"type": "tool_use", "name": "f", "input": {}}), "messages[0].content[0].id"),
        (
            assistant({"type": "tool_use", "id": "x", "name": "f", "input": "{}"}),
            "messages[0].content[0].input",
        ),
        ({"system": 5}, "system"),
        ({"system": [IMAGE]}, "system[0]: image"),
        ({"system": [{"type": [], "text": "x"}]}, "system[0].type"),
        ({"system": [{"type": "text", "text": ""}] * 20_000}, "system"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["a"] * 5}, "stop_sequences"),
        ({"stream": "yes"}, "stream"),
        ({"thinking": {"type": "on"}}, "thinking.type"),
        ({"tools": {}, "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": 5}, "tools"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "tools[0]: web_search",
        ),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "f f", "input_schema": {"type": "object"}}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "input_schema": {"type": 5}}]}, "tools[0].input_schema.type"),
        (
            {"tools": [{"name": "f", "input_schema": {"properties": {"a": {"type": "x"}}}}]},
            "tools[0].input_schema.properties.a",
        ),
        ({"tools": TOOLS, "tool_choice": "auto"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "some"}}, "tool_choice"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": 5}}}},
            "output_config.format.schema",
        ),
        ({"output_config": {"effort": "high"}}, "output_config.effort"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
        ({"container": "x"}, "container"),
        ({"logprobs": 3}, "logprobs"),
        ({"no_such_field": 1}, "no_such_field"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_bad_fields(http, fields, named) -> None:
    client, backend = http
    body = {"model": "tiny", **ASKED, **fields}
    body = {name: value for name, value in body.items() if value is not None}
    if fields == {"model": None}:
        body["model"] = ""
    answer = client.post(PATH, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()
    assert error["type"] == "error"
    assert error["error"].keys() == {"type", "message"}
    assert error["error"]["type"] == "invalid_request_error"
    assert named in error["error"]["message"]
    assert backend.requests == []


def test_errors_of_every_kind_have_the_shape(http, directory) -> None:
    client, _ = http

    def kind(answer) -> tuple[int, str]:
        assert answer.json().keys() == {"type", "error"}
        return answer.status_code, answer.json()["error"]["type"]

    as_json = {"content-type": "application/json"}
    body = {"model": "other", **ASKED}
    assert kind(client.post(PATH, json=body)) == (404, "not_found_error")
    assert kind(client.post(PATH, content=b"{", headers=as_json)) == (400, "invalid_request_error")
    assert kind(client.post(PATH, content=b"{}"))[0] == 415
    assert kind(client.get(PATH))[0] == 405
    assert kind(client.post(f"{PATH}/batches", json={})) == (404, "not_found_error")
    assert kind(client.post(f"{PATH}/count_tokens", json={})) == (400, "invalid_request_error")
    settings = ApiSettings(api_key="secret", max_body_bytes=2000)
    backend = FakeBackend([served_model(directory, max_model_len=4096)])
    body = {"model": "tiny", **ASKED}
    with TestClient(create_app(backend, settings)) as closed:
        assert kind(closed.post(PATH, json=body)) == (401, "authentication_error")
        wrong = closed.post(PATH, json=body, headers={"x-api-key": "other"})
        assert kind(wrong) == (401, "authentication_error")
        key = {"x-api-key": "secret", "anthropic-version": "2023-06-01"}
        assert closed.post(PATH, json=body, headers=key).status_code == 200
        large = {**body, "system": "x" * 3000}
        assert kind(closed.post(PATH, json=large, headers=key)) == (413, "request_too_large")
