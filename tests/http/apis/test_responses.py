"""OpenAI's Responses API by the real openai client, against a model that says what it is told."""

import json

import openai
import pydantic
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

PATH = "/v1/responses"
TOOLS = [
    {"type": "function", "name": "get_weather", "description": "Tells it.", "parameters": SCHEMA},
    {"type": "function", "name": "clock"},
]


def ask(model, **fields):
    return model.client.responses.create(model="tiny", **{"input": "Hi", **fields})


def without_ids(output):
    """Items without what differs between two answers."""
    return [{**item, "id": "", "call_id": ""} for item in output]


def test_a_whole_response(model) -> None:
    model.says = ["Hello there."]
    found = ask(model, instructions="Be brief.", temperature=0, top_p=0.5, max_output_tokens=40)
    assert found.output_text == "Hello there."
    assert (found.object, found.status, found.model) == ("response", "completed", "tiny")
    assert (found.error, found.incomplete_details) == (None, None)
    assert (found.temperature, found.top_p, found.max_output_tokens) == (0, 0.5, 40)
    assert (found.instructions, found.to_dict()["store"]) == ("Be brief.", False)
    request = model.backend.requests[-1]
    assert found.usage.input_tokens == len(request.prompt_tokens)
    assert found.usage.input_tokens_details.cached_tokens == 3
    num_said = len(model.tokenizer.encode("Hello there.", False)) + 1
    assert found.usage.output_tokens == num_said
    assert found.usage.total_tokens == len(request.prompt_tokens) + num_said
    assert request.sampling.max_tokens == 40
    assert model.prompt() == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


SAID = [
    ("Hello there.", {}),
    ("", {}),
    (f"{THOUGHT}Yes.", {}),
    (f"{THOUGHT}Let me see.\n{CALL}\n{CLOCK_CALL}", {"tools": TOOLS}),
    ("Hello there, how are you?", {"max_output_tokens": 4}),
    (f"{THOUGHT}Yes.", {"max_output_tokens": 6}),
    (CALL, {"tools": TOOLS, "max_output_tokens": 40}),
]


@pytest.mark.parametrize("width", [1, 4, 100])
@pytest.mark.parametrize(("says", "fields"), SAID)
def test_a_stream_adds_up_to_the_whole_response(model, says, fields, width) -> None:
    model.says, model.backend.width = [says], width
    try:
        whole = ask(model, **fields)
        found = events_of(post(model, PATH, {"input": "Hi", **fields, "stream": True}))
    finally:
        model.backend.width = 1
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    kinds = [event["type"] for event in found]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == f"response.{whole.status}"
    last = found[-1]["response"]
    assert without_ids(last["output"]) == without_ids(whole.to_dict()["output"])
    for name in ("status", "usage", "incomplete_details", "tools", "text"):
        assert last[name] == whole.to_dict()[name]
    done = [e["item"] for e in found if e["type"] == "response.output_item.done"]
    assert done == last["output"]
    added = [e["item"] for e in found if e["type"] == "response.output_item.added"]
    assert [item["id"] for item in added] == [item["id"] for item in done]
    assert all(item["status"] == "in_progress" for item in added)
    texts = {}
    for event in found:
        if event["type"].endswith(".delta"):
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
        elif event["type"].endswith("text.done"):
            assert texts[event["item_id"]] == event["text"]
        elif event["type"].endswith("arguments.done"):
            assert texts.get(event["item_id"], "") == event["arguments"]


def test_the_clients_stream_helper(model) -> None:
    model.says = [f"{THOUGHT}Let me see.\n{CALL}"]
    with model.client.responses.stream(model="tiny", input="Hi", tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert "response.reasoning_text.delta" in kinds
    assert final.output_text == "Let me see."
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert json.loads(final.output[2].arguments) == ARGUMENTS


def test_a_form_is_parsed(model) -> None:
    class City(pydantic.BaseModel):
        city: str

    model.says = ['{"city": "Rome"}']
    found = model.client.responses.parse(model="tiny", input="Where?", text_format=City)
    assert found.output_parsed == City(city="Rome")
    assert "city" in model.backend.requests[-1].sampling.constraint.grammar
    with model.client.responses.stream(model="tiny", input="Where?", text_format=City) as stream:
        assert stream.get_final_response().output_parsed == City(city="Rome")
    ask(model, text={"format": {"type": "json_object"}})
    assert model.backend.requests[-1].sampling.constraint is not None
    ask(model, text={"format": {"type": "text"}, "verbosity": "medium"})
    assert model.backend.requests[-1].sampling.constraint is None


def test_a_tool_loop(model) -> None:
    model.says = [f"{THOUGHT}Let me see.\n{CALL}\n{CLOCK_CALL}"]
    items = [{"role": "user", "content": "Weather?"}]
    found = ask(model, input=items, tools=TOOLS)
    calls = [item for item in found.output if item.type == "function_call"]
    assert [call.name for call in calls] == ["get_weather", "clock"]
    items += found.output
    items += [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"<{call.name}>"}
        for call in calls
    ]
    items.append({"role": "user", "content": [{"type": "input_text", "text": "And then?"}]})
    model.says = ["Cold."]
    assert ask(model, input=items, tools=TOOLS).output_text == "Cold."
    assert model.prompt().endswith(
        f"<|im_start|>assistant\n{THOUGHT}Let me see.\n{CALL}\n{CLOCK_CALL}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n<get_weather>\n</tool_response><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n<clock>\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_choices_of_tools_are_those_of_chats(model) -> None:
    model.says = [CALL]
    for choice, names in (
        ("required", {"get_weather", "clock"}),
        ({"type": "function", "name": "clock"}, {"clock"}),
    ):
        ask(model, tools=TOOLS, tool_choice=choice)
        grammar = model.backend.requests[-1].sampling.constraint.grammar
        assert {name for name in ("get_weather", "clock") if name in grammar} == names
    model.says = [f"{CALL}\n{CLOCK_CALL}"]
    assert len(ask(model, tools=TOOLS, parallel_tool_calls=False).output) == 1
    found = ask(model, tools=TOOLS, tool_choice="none")
    assert (found.output_text, found.tool_choice) == (f"{CALL}\n{CLOCK_CALL}", "none")


def test_first_messages_of_the_system_are_one(model) -> None:
    model.says = ["ok"]
    items = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    ask(model, input=items, instructions="Be brief.")
    assert model.prompt().startswith("<|im_start|>system\nBe brief.\n\nBe kind.<|im_end|>\n")


def test_what_changes_nothing_is_taken(model) -> None:
    model.says = ["ok"]
    found = ask(
        model,
        store=False,
        background=False,
        include=["reasoning.encrypted_content"],
        truncation="disabled",
        metadata={"a": "b"},
        user="u",
        prompt_cache_key="k",
        reasoning={"summary": "auto"},
        service_tier="flex",
        extra_body={"priority": 3},
    )
    assert (found.output_text, found.metadata) == ("ok", {"a": "b"})
    request = model.backend.requests[-1]
    assert (request.service_class.value, request.priority) == ("batch", 3)


def test_an_error_within_a_stream_is_an_event(model) -> None:
    model.says = ["Hello there, how are you?"]
    model.backend.error, model.backend.error_after = EngineFailure("it broke"), 3
    try:
        found = events_before_the_cut(model, PATH, {"input": "Hi", "stream": True})
    finally:
        model.backend.error = None
    assert found[-1]["type"] == "response.failed"
    assert found[-1]["response"]["status"] == "failed"
    assert found[-1]["response"]["error"] == {"code": "internal_error", "message": "it broke"}


@pytest.fixture(scope="module")
def http(directory):
    backend = FakeBackend([served_model(directory)])
    with TestClient(create_app(backend, ApiSettings())) as http:
        yield http, backend


def message(*parts, role="user"):
    return {"input": [{"role": role, "content": list(parts)}]}


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ""}, "model"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": ["Hi"]}, "input[0]"),
        ({"input": [{"content": "Hi"}]}, "input[0].role"),
        ({"input": [{"role": "tool", "content": "Hi"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": "x"}] * 20_000}, "input"),
        (
            {"input": [{"type": "function_call_output", "output": [{"type": "text"}] * 20_000}]},
            "input",
        ),
        (message(IMAGE), "input[0].content[0].type"),
        (message({"type": "input_text"}), "input[0].content[0].text"),
        (message({"type": ["input_text"], "text": "x"}), "input[0].content[0].type"),
        (message({"type": "refusal", "refusal": "no"}), "input[0].content[0].type"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"type": 5}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": ""}]}, "input[0].call_id"),
        (
            {"input": [{"type": "function_call", "call_id": "x", "arguments": ""}]},
            "input[0].name",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "x", "name": "f", "arguments": "[]"}]},
            "input",
        ),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "x"}]}, "input[0].output"),
        ({"instructions": 5}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10_000}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options.include_usage"),
        ({"tools": 5}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**TOOLS[0], "parameters": {"type": 5}}]}, "tools[0].parameters.type"),
        ({"tools": [{**TOOLS[0], "other": 5}]}, "tools[0].other"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "some"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": 5}}}},
            "text.format.schema",
        ),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"conversation": "x"}, "conversation"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"no_such_field": 1}, "no_such_field"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_bad_fields(http, fields, param) -> None:
    client, backend = http
    answer = client.post(PATH, json={"model": "tiny", "input": "Hi", **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert backend.requests == []


def test_what_needs_storing_names_the_setting(http) -> None:
    client, backend = http
    answers = [
        client.post(PATH, json={"model": "tiny", "input": "Hi", "store": True}),
        client.get(f"{PATH}/resp_x"),
        client.delete(f"{PATH}/resp_x"),
        client.get(f"{PATH}/resp_x/input_items"),
        client.post(f"{PATH}/resp_x/cancel"),
    ]
    for answer in answers:
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "unsupported_parameter"
        assert "server.store" in answer.json()["error"]["message"]
    assert backend.requests == []


def test_an_unknown_model_is_openais_error(model) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        model.client.responses.create(model="other", input="Hi")
    assert error.value.code == "model_not_found"
