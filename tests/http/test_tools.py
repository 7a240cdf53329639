"""Tools over HTTP, by the real openai client against a model that says what it is told."""

import json

import openai
import pydantic
import pytest
from starlette.testclient import TestClient

from muxcluster.http.app import create_app
from muxcluster.http.calls.model_text import ModelTexts
from muxcluster.http.service import tokenise
from muxcluster.http.settings import ApiSettings
from muxcluster.text.schemas import ChatBody
from muxcluster.text.tools.output import ID_LENGTH
from muxcluster.text.validation.body import parse
from tests.http.fakes import FakeBackend, served_model
from tests.http.tool_models import gathered, make_model, served
from tests.text.tools import templates

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Tells it.", "parameters": PARAMETERS},
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich 🦊"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
ARGUMENTS = '{"city": "Zürich 🦊"}'


@pytest.fixture(scope="module")
def hermes_dir(tmp_path_factory):
    marks = ("<tool_call>", "</tool_call>")
    directory = tmp_path_factory.mktemp("models") / "hermes"
    return make_model(directory, templates.HERMES, plain=marks, special=["<|im_start|>"])


@pytest.fixture
def model(hermes_dir):
    with served(hermes_dir, reasoning="none") as model:
        yield model


@pytest.fixture(scope="module")
def hermes_app(hermes_dir):
    backend = FakeBackend([served_model(hermes_dir)])
    with TestClient(create_app(backend, ApiSettings())) as http:
        yield http, backend


def called(message):
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]


def test_a_whole_answer(model) -> None:
    model.says = [f"Let me see.\n{CALL}\n{SECOND}"]
    answer = model.ask(tools=TOOLS)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert called(choice.message) == [("get_weather", ARGUMENTS), ("clock", "{}")]
    assert {call.type for call in choice.message.tool_calls} == {"function"}
    ids = [call.id for call in choice.message.tool_calls]
    assert len(set(ids)) == 2
    assert {len(each) for each in ids} == {ID_LENGTH}
    assert json.dumps(WEATHER, ensure_ascii=False) in model.prompt()
    assert json.dumps(CLOCK) in model.prompt()
    num_said = len(model.tokenizer.encode(f"Let me see.\n{CALL}\n{SECOND}", False)) + 1
    assert answer.usage.completion_tokens == num_said
    assert answer.usage.completion_tokens_details is None


@pytest.mark.parametrize("width", [1, 3, 50])
def test_a_stream(model, width) -> None:
    model.says = [f"Let me see.\n{CALL}\n{SECOND}"]
    model.backend.width = width
    chunks = list(model.ask(tools=TOOLS, stream=True, stream_options={"include_usage": True}))
    found = gathered(chunks)
    assert found["content"] == "Let me see."
    assert [(call["name"], call["arguments"]) for call in found["calls"]] == [
        ("get_weather", ARGUMENTS),
        ("clock", "{}"),
    ]
    assert found["finish"] == "tool_calls"
    assert chunks[-1].usage.completion_tokens > 0
    if width == 1:
        pieces = [
            call.function.arguments
            for chunk in chunks
            for choice in chunk.choices
            for call in choice.delta.tool_calls or ()
            if call.index == 0 and call.id is None
        ]
        assert len(pieces) > 3


def test_a_call_alone_has_no_content(model) -> None:
    model.says = [CALL]
    assert model.ask(tools=TOOLS).choices[0].message.content is None


def test_choices_have_their_own_calls(model) -> None:
    model.says = [CALL, "No need."]
    chunks = list(model.ask(tools=TOOLS, n=2, stream=True))
    both = [gathered(chunks, index) for index in range(2)]
    with_call = next(each for each in both if each["calls"])
    without = next(each for each in both if not each["calls"])
    assert (with_call["finish"], without["finish"]) == ("tool_calls", "stop")
    assert without["content"] == "No need."
    model.says = [CALL]
    choices = model.ask(tools=TOOLS, n=2).choices
    assert [called(choice.message) for choice in choices] == [[("get_weather", ARGUMENTS)]] * 2


def test_a_tool_loop(model) -> None:
    model.says = [f"{CALL}\n{SECOND}", "12 °C at noon."]
    messages = [{"role": "user", "content": "Weather?"}]
    answer = model.ask(tools=TOOLS, messages=messages).choices[0].message
    messages.append(answer)
    for call in answer.tool_calls:
        messages.append({"role": "tool", "tool_call_id": call.id, "content": f"<{call.id}>"})
    last = model.ask(tools=TOOLS, messages=messages).choices[0]
    assert (last.message.content, last.finish_reason) == ("12 °C at noon.", "stop")
    assert f"assistant\n{CALL}\n{SECOND}<|im_end|>" in model.prompt()
    for call in answer.tool_calls:
        assert f"<tool_response>\n<{call.id}>\n</tool_response>" in model.prompt()


def test_pydantic_tools_by_parse(model) -> None:
    class GetWeather(pydantic.BaseModel):
        """Tells it."""

        city: str

    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    model.says = [CALL]
    messages = [{"role": "user", "content": "Weather?"}]
    answer = model.client.chat.completions.parse(model="tiny", messages=messages, tools=[tool])
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.parsed_arguments == GetWeather(city="Zürich 🦊")
    with model.client.chat.completions.stream(
        model="tiny", messages=messages, tools=[tool]
    ) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert call.function.parsed_arguments == GetWeather(city="Zürich 🦊")
    assert [event.parsed_arguments for event in done] == [GetWeather(city="Zürich 🦊")]


def test_no_tool_may_be_called(model) -> None:
    model.says = [CALL]
    answer = model.ask(tools=TOOLS, tool_choice="none").choices[0]
    assert (answer.message.content, answer.finish_reason) == (CALL, "stop")
    assert answer.message.tool_calls is None
    assert "# Tools" not in model.prompt()


def test_only_the_named_tool_is_called(model) -> None:
    choice = {"type": "function", "function": {"name": "clock"}}
    model.says = [f"{CALL}\n{SECOND}"]
    message = model.ask(tools=TOOLS, tool_choice=choice).choices[0].message
    assert called(message) == [("clock", "{}")]
    assert json.dumps(WEATHER, ensure_ascii=False) in model.prompt()


@pytest.mark.parametrize("width", [1, 50])
def test_one_call_where_no_second_is_wanted(model, width) -> None:
    model.says = [f"{CALL}\n{SECOND}"]
    model.backend.width = width
    answer = model.ask(tools=TOOLS, parallel_tool_calls=False)
    assert called(answer.choices[0].message) == [("get_weather", ARGUMENTS)]
    assert answer.choices[0].finish_reason == "tool_calls"
    first = CALL.removesuffix("\n</tool_call>")
    assert answer.usage.completion_tokens == len(model.tokenizer.encode(first, False))
    found = gathered(model.ask(tools=TOOLS, parallel_tool_calls=False, stream=True))
    assert (len(found["calls"]), found["finish"]) == (1, "tool_calls")


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>get_weather(Paris)</tool_call>",
        '<tool_call>\n{"name": "get_wether", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": Paris}}\n</tool_call>',
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "P',
    ],
)
def test_a_malformed_call_stays_content(model, text) -> None:
    model.says = [text]
    answer = model.ask(tools=TOOLS).choices[0]
    assert (answer.message.content, answer.finish_reason) == (text, "stop")
    assert answer.message.tool_calls is None
    found = gathered(model.ask(tools=TOOLS, stream=True))
    assert found["finish"] == "stop"
    streamed = "".join(call["arguments"] for call in found["calls"]) + found["content"]
    assert text.endswith(streamed)
    assert found["calls"] or streamed == text


def test_a_call_cut_at_the_limit_is_there_as_far_as_it_goes(model) -> None:
    model.says = [CALL]
    start = '<tool_call>\n{"name": "get_weather", "arguments": {"ci'
    cut = len(model.tokenizer.encode(start, False))
    answer = model.ask(tools=TOOLS, max_tokens=cut).choices[0]
    assert answer.finish_reason == "length"
    assert called(answer.message) == [("get_weather", '{"ci')]
    found = gathered(model.ask(tools=TOOLS, max_tokens=cut, stream=True))
    assert found["calls"][0]["arguments"] == '{"ci'
    assert found["finish"] == "length"


def test_logprobs_are_those_of_all_tokens(model) -> None:
    model.says = [CALL]
    tokens = model.tokenizer.encode(CALL, False)
    answer = model.ask(tools=TOOLS, logprobs=True, max_tokens=len(tokens))
    assert len(answer.choices[0].logprobs.content) == len(tokens)
    streamed = [
        item
        for chunk in model.ask(tools=TOOLS, logprobs=True, max_tokens=len(tokens), stream=True)
        for choice in chunk.choices
        if choice.logprobs is not None
        for item in choice.logprobs.content
    ]
    assert streamed == answer.choices[0].logprobs.content


def test_a_stop_string_ends_an_output_with_calls(model) -> None:
    model.says = [f"{CALL}\nEND more"]
    answer = model.ask(tools=TOOLS, stop="END").choices[0]
    assert answer.finish_reason == "tool_calls"
    assert answer.message.content is None
    assert called(answer.message) == [("get_weather", ARGUMENTS)]


def test_a_tool_call_may_be_asked_for_with_a_schema(model) -> None:
    model.says = [CALL]
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        model.ask(tools=TOOLS, tool_choice=choice)
        constraint = model.backend.requests[-1].sampling.constraint
        assert constraint.begins_after == ()
        assert "get_weather" in constraint.grammar
        assert ("clock" in constraint.grammar) == (choice == "required")
    model.ask(tools=TOOLS)
    assert model.backend.requests[-1].sampling.constraint is None
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    model.ask(tools=[strict, CLOCK])
    assert model.backend.requests[-1].sampling.constraint is not None
    assert '"strict"' not in model.prompt()


def test_tools_beside_an_output_format(model) -> None:
    """JSON or one call; what other grammars would ask of an answer without a call is refused."""
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    for choice, in_grammar in (("auto", True), ("required", False), ("none", True)):
        model.ask(tools=TOOLS, tool_choice=choice, response_format=form)
        grammar = model.backend.requests[-1].sampling.constraint.grammar
        assert ("answer" in grammar) == in_grammar
        assert ("get_weather" in grammar) == (choice != "none")
    extra = {"structured_outputs": {"regex": "a+"}}
    model.ask(tools=TOOLS, tool_choice="required", extra_body=extra)
    with pytest.raises(openai.BadRequestError, match="only JSON") as error:
        model.ask(tools=TOOLS, extra_body=extra)
    assert error.value.param == "tool_choice"


def test_prompts_that_a_batch_plan_keeps_have_the_tools(model) -> None:
    """What is tokenised before a batch's line runs is what the line would be tokenised to."""
    messages = [{"role": "user", "content": "Hi"}]
    fields = {"model": "tiny", "messages": messages, "tools": TOOLS}
    text = ModelTexts.load(model.backend.served).find("tiny")
    (prompt,) = tokenise(parse(ChatBody, fields), text).prompts
    model.ask(messages=messages, tools=TOOLS)
    assert prompt.tokens.tolist() == model.backend.requests[-1].prompt_tokens.tolist()


def test_tokenize_shows_the_tools(hermes_app) -> None:
    http, _ = hermes_app
    body = {"messages": [{"role": "user", "content": "Hi"}], "return_token_strs": True}
    with_tools = http.post("/tokenize", json={**body, "tools": TOOLS}).json()["token_strs"]
    assert "get_weather" in "".join(with_tools)
    assert len(http.post("/tokenize", json=body).json()["tokens"]) < len(with_tools)


MISTRAL_MARKS = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[INST]", "[/INST]")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (
            templates.MISTRAL,
            '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Zürich 🦊"}}]',
        ),
        (templates.MISTRAL_NAMED, f"[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}"),
    ],
)
def test_marks_that_are_special_tokens(tmp_path, template, text) -> None:
    directory = make_model(tmp_path / "mistral", template, special=MISTRAL_MARKS)
    with served(directory) as model:
        model.says = [f"Well[INST].{text}"]
        message = model.ask(tools=TOOLS).choices[0].message
        assert (message.content, called(message)) == ("Well.", [("get_weather", ARGUMENTS)])
        found = gathered(model.ask(tools=TOOLS, stream=True))
        assert found["calls"][0]["arguments"] == ARGUMENTS
        # nobody reads them without tools
        answer = model.ask().choices[0].message.content
        assert answer == f"Well.{text}".replace("[TOOL_CALLS]", "").replace("[ARGS]", "")


def test_a_model_whose_template_knows_no_tools(tmp_path) -> None:
    directory = make_model(tmp_path / "plain", templates.PLAIN)
    with served(directory) as model:
        with pytest.raises(openai.BadRequestError, match="no tool format") as error:
            model.ask(tools=TOOLS)
        assert (error.value.code, error.value.param) == ("invalid_value", "tools")
        messages = [{"role": "tool", "content": "12", "tool_call_id": "x"}]
        with pytest.raises(openai.BadRequestError, match="no tool format") as error:
            model.ask(messages=messages)
        assert error.value.param == "messages[0]"
        assert model.backend.requests == []
    with served(directory, tool_format="json") as model:
        model.says = ['{"name": "clock", "arguments": {}}', "Noon."]
        messages = [{"role": "user", "content": "Time?"}]
        answer = model.ask(tools=TOOLS, messages=messages).choices[0]
        assert called(answer.message) == [("clock", "{}")]
        assert answer.finish_reason == "tool_calls"
        assert json.dumps(WEATHER["function"]) in model.prompt()
        (call,) = answer.message.tool_calls
        result = {"role": "tool", "content": "12:00", "tool_call_id": call.id}
        last = model.ask(tools=TOOLS, messages=[*messages, answer.message, result])
        assert last.choices[0].message.content == "Noon."
        assert "<|user|>Result of clock:\n12:00" in model.prompt()


def test_a_template_that_refuses_is_quoted(tmp_path) -> None:
    with served(make_model(tmp_path / "llama", templates.LLAMA3)) as model:
        calls = [
            {"id": each, "type": "function", "function": {"name": "clock", "arguments": "{}"}}
            for each in "ab"
        ]
        messages = [{"role": "assistant", "tool_calls": calls}]
        with pytest.raises(openai.BadRequestError, match="only supports single tool-calls"):
            model.ask(messages=messages)


def function(**fields):
    return [{"type": "function", "function": {"name": "f", **fields}}]


def assistant(**call):
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}, **call}
    return [{"role": "assistant", "tool_calls": [call]}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": function(name="two words")}, "tools[0].function.name"),
        ({"tools": function(name="x" * 65)}, "tools[0].function.name"),
        ({"tools": function(arguments={})}, "tools[0].function.arguments"),
        ({"tools": function() * 2}, "tools[1]"),
        ({"tools": function() * 129}, "tools"),
        ({"tools": function(parameters={"type": "array"})}, "tools[0].function.parameters.type"),
        (
            {"tools": function(parameters={"properties": {"a": {"type": "text"}}})},
            "tools[0].function.parameters",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any", "tools": TOOLS}, "tool_choice"),
        ({"tool_choice": 1, "tools": TOOLS}, "tool_choice"),
        ({"tool_choice": {"type": "custom"}, "tools": TOOLS}, "tool_choice"),
        (
            {"tool_choice": {"type": "function", "function": {}}, "tools": TOOLS},
            "tool_choice.function.name",
        ),
        (
            {"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": TOOLS},
            "tool_choice",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "tool", "tool_call_id": 1, "content": "x"}]},
            "messages[0].tool_call_id",
        ),
        ({"messages": [{"role": "tool", "tool_call_id": "x"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": "x", "tool_call_id": "x"}]},
            "messages[0].tool_call_id",
        ),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]},
            "messages[0].tool_calls",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": 1}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [1]}]}, "messages[0].tool_calls[0]"),
        ({"messages": [{"role": "assistant"}]}, "messages[0].content"),
        ({"messages": assistant(type="custom")}, "messages[0].tool_calls[0].type"),
        ({"messages": assistant(id=None)}, "messages[0].tool_calls[0].id"),
        ({"messages": assistant(function=1)}, "messages[0].tool_calls[0].function"),
        ({"messages": assistant(function={})}, "messages[0].tool_calls[0].function.name"),
        (
            {"messages": assistant(function={"name": "f", "arguments": "{oops"})},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"messages": assistant(function={"name": "f", "arguments": "[1]"})},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "function_call": {"name": "f"}}]},
            "messages[0].function_call",
        ),
        ({"functions": [{"name": "f"}]}, "functions"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_bad_fields(hermes_app, fields, param) -> None:
    http, backend = hermes_app
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], **fields}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert backend.requests == []
