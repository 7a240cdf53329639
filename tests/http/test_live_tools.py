"""Tools and reasoning of a model with random weights, with OpenAI's client over HTTP.

What such a model says is noise, so calls are well formed by the grammar alone.
"""

import json
from collections.abc import Iterator

import httpx
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.batch.jobs import line_of
from tests.http.batches.clients import ended, read_lines, submit
from tests.http.live_server import NAME, live_server
from tests.http.tool_models import END_OF_THINKING, gathered, tool_model

USER = [{"role": "user", "content": "Weather?"}]
# the prompt opens the tag, and the model soon says "</think>"
THINKING = {
    "extra_body": {"chat_template_kwargs": {"opens": True}},
    "logit_bias": {f"{END_OF_THINKING}": 6.0},
}
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


class GetWeather(BaseModel):
    """Tells the weather."""

    model_config = ConfigDict(extra="forbid")

    city: str = Field(max_length=8)
    days: list[bool] = Field(max_length=2)


class Clock(BaseModel):
    """Tells the time."""

    model_config = ConfigDict(extra="forbid")

    zone: int = Field(ge=-12, le=12)


KINDS = {"GetWeather": GetWeather, "Clock": Clock}
TOOLS = [openai.pydantic_function_tool(kind) for kind in KINDS.values()]
PLAIN = [
    {**tool, "function": {k: v for k, v in tool["function"].items() if k != "strict"}}
    for tool in TOOLS
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    file = tool_model(tmp_path_factory.mktemp("tools"))
    with (
        live_server(file) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def ask(client: openai.OpenAI, **fields):
    fields = {"messages": USER, "tools": PLAIN, "seed": 1, "max_tokens": 900, **fields}
    fields.setdefault("extra_body", NO_THINKING)
    return client.chat.completions.create(model=NAME, **fields)


def check(calls) -> None:
    """Calls of a message, or of a stream put together."""
    for call in calls:
        name, arguments = call if isinstance(call, tuple) else (call["name"], call["arguments"])
        KINDS[name].model_validate_json(arguments)


def called(message) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]


def test_a_call_is_needed(client) -> None:
    """Every choice has calls that match their schemas, and nothing else."""
    answer = ask(client, tool_choice="required", parallel_tool_calls=False, n=4)
    for choice in answer.choices:
        assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")
        assert len(choice.message.tool_calls) == 1
        check(called(choice.message))
    assert len({str(called(choice.message)) for choice in answer.choices}) > 1


def test_a_stream_has_the_same_calls(client) -> None:
    fields = {"tool_choice": "required", "parallel_tool_calls": False}
    whole = ask(client, **fields).choices[0].message
    found = gathered(ask(client, **fields, stream=True))
    assert [(call["name"], call["arguments"]) for call in found["calls"]] == called(whole)
    assert found["finish"] == "tool_calls"


def test_the_named_tool_is_called(client) -> None:
    choice = {"type": "function", "function": {"name": "Clock"}}
    for seed in range(3):
        answer = ask(client, tool_choice=choice, parallel_tool_calls=False, seed=seed)
        ((name, arguments),) = called(answer.choices[0].message)
        assert name == "Clock"
        check([(name, arguments)])


def test_several_calls(client) -> None:
    """With room for it, a model may call as often as it likes; whole calls match."""
    counts = set()
    for choice in ask(client, tool_choice="required", n=4, max_tokens=200).choices:
        calls = called(choice.message)
        check(calls[:-1] if choice.finish_reason == "length" else calls)
        counts.add(len(calls))
    assert max(counts) > 1


def test_parse_and_a_tool_loop(client) -> None:
    messages = list(USER)
    for _ in range(2):
        answer = client.chat.completions.parse(
            model=NAME,
            messages=messages,
            tools=TOOLS,
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=900,
            extra_body=NO_THINKING,
        )
        message = answer.choices[0].message
        (call,) = message.tool_calls
        assert isinstance(call.function.parsed_arguments, KINDS[call.function.name])
        result = {"role": "tool", "tool_call_id": call.id, "content": "ok"}
        messages += [message.model_dump(exclude_none=True), result]


def test_other_apis_have_calls(client) -> None:
    """As test_a_call_is_needed and test_a_stream_has_the_same_calls, by Responses and Messages."""
    functions = [tool["function"] for tool in PLAIN]
    shared = {"seed": 1, **NO_THINKING}
    asked = {
        "model": NAME,
        "input": "Weather?",
        "tools": [{"type": "function", **function} for function in functions],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_output_tokens": 900,
    }
    (whole,) = client.responses.create(**asked, extra_body=shared).output
    (streamed,) = [
        event.item
        for event in client.responses.create(**asked, extra_body=shared, stream=True)
        if event.type == "response.output_item.done"
    ]
    message = {
        "model": NAME,
        "messages": USER,
        "tools": [
            {"name": function["name"], "input_schema": function["parameters"]}
            for function in functions
        ],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "max_tokens": 900,
        **shared,
    }
    found = client.post("/messages", body=message, cast_to=httpx.Response).json()
    (block,) = found["content"]
    assert found["stop_reason"] == "tool_use"
    calls = [(item.name, item.arguments) for item in (whole, streamed)]
    check([*calls, (block["name"], json.dumps(block["input"]))])
    assert calls[0] == calls[1]


def test_lines_of_a_batch_have_calls(client) -> None:
    fields = {"tools": PLAIN, "tool_choice": "required", "parallel_tool_calls": False}
    body = {"messages": USER, "model": NAME, "max_tokens": 900, **NO_THINKING, **fields}
    url = "/v1/chat/completions"
    lines = [line_of(each, url=url, body=body) for each in ("a", "b")]
    batch = ended(client, submit(client, lines, endpoint=url).id)
    answers = read_lines(client, batch.output_file_id)
    assert set(answers) == {"a", "b"}
    for line in answers.values():
        message = line["response"]["body"]["choices"][0]["message"]
        (call,) = message["tool_calls"]
        check([(call["function"]["name"], call["function"]["arguments"])])


def test_calls_after_reasoning(client) -> None:
    """Thinking is free text; the grammar holds from its end on."""
    fields = {"tool_choice": "required", "parallel_tool_calls": False}
    answer = ask(client, **fields, **THINKING)
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert message.content is None
    assert message.reasoning_content
    assert answer.usage.completion_tokens_details.reasoning_tokens > 1
    assert called(message)
    check(called(message))


def test_an_output_format_after_reasoning(client) -> None:
    form = {
        "type": "json_schema",
        "json_schema": {"name": "clock", "schema": Clock.model_json_schema()},
    }
    fields = {"tools": openai.omit, "response_format": form}
    thinking = ask(client, **fields, **THINKING).choices[0]
    plain = ask(client, **fields).choices[0]
    for choice in (thinking, plain):
        assert choice.finish_reason == "stop"
        Clock.model_validate_json(choice.message.content)
    assert thinking.message.reasoning_content
    assert not hasattr(plain.message, "reasoning_content")
    found = gathered(ask(client, **fields, **THINKING, stream=True))
    assert found["content"] == thinking.message.content
    assert found["reasoning"] == thinking.message.reasoning_content
