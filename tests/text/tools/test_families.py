"""Formats against chat templates as the families write them."""

import json

import pytest
from transformers import AutoTokenizer

from muxcluster.text.reasoning import PromptEnd, prompt_end, tags_of
from muxcluster.text.template import ChatTemplate, RenderOptions
from muxcluster.text.tools.asked import AskedTools, Tool
from muxcluster.text.tools.formats import tools_of
from muxcluster.text.tools.messages import described
from muxcluster.text.tools.output import OutputRules, new_call_id
from muxcluster.text.validation.prompts import chat_messages
from tests.text.tools import templates
from tests.text.tools.test_output import Divided, divided

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
SHOWN = [
    {
        "type": "function",
        "function": {"name": name, "description": "It does.", "parameters": SCHEMA},
    }
    for name in ("get_weather", "add")
]
CALLS = [("get_weather", '{"city": "Zürich \\"\\\\ \\u2028"}'), ("add", '{"a": [1, {"b": null}]}')]
ONE_CALL = {"llama3"}  # templates that refuse several calls of one message


def talk(calls):
    """A question, an answer with calls as a client sends it back, and their results."""
    ids = [new_call_id() for _ in calls]
    sent = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, (name, arguments) in zip(ids, calls, strict=True)
    ]
    results = [{"role": "tool", "tool_call_id": each, "content": "12 °C"} for each in ids]
    question = {"role": "user", "content": "Weather?"}
    return [question, {"role": "assistant", "content": None, "tool_calls": sent}, *results]


@pytest.mark.parametrize("name", templates.BY_FORMAT)
def test_what_a_template_writes_is_read_back(name, text_directory) -> None:
    source = templates.BY_FORMAT[name]
    path = text_directory("bytes", chat_template=source)
    calls = CALLS[:1] if name in ONE_CALL else CALLS
    messages = chat_messages(talk(calls))
    prompt = ChatTemplate.load(path).render(messages, RenderOptions(tools=SHOWN))
    theirs = AutoTokenizer.from_pretrained(path)
    assert prompt == theirs.apply_chat_template(
        messages, tools=SHOWN, tokenize=False, add_generation_prompt=True
    )
    begin, end = templates.TURNS[name]
    text = prompt.split(begin)[1].split(end)[0]
    form = tools_of("auto", source).format
    rules = OutputRules(format=form, names=frozenset({"get_weather", "add"}))
    found = divided(rules, text)
    assert (found.content, found.broken) == ("", [])
    assert [tool for tool, _ in found.calls] == [tool for tool, _ in calls]
    assert [json.loads(each) for _, each in found.calls] == [json.loads(each) for _, each in calls]


@pytest.mark.parametrize("name", templates.BY_FORMAT)
def test_what_the_grammar_demands_is_what_the_template_writes(name, text_directory) -> None:
    source = templates.BY_FORMAT[name]
    calls = CALLS[:1] if name in ONE_CALL else CALLS
    messages = chat_messages(talk(calls))
    path = text_directory("bytes", chat_template=source)
    prompt = ChatTemplate.load(path).render(messages, RenderOptions(tools=SHOWN))
    written = tools_of("auto", source).format.written
    for message_call in messages[1]["tool_calls"]:
        tool = message_call["function"]["name"]
        assert written.begin_of(tool) in prompt
    assert written.prefix in prompt
    assert written.end in prompt


@pytest.mark.parametrize(
    ("setting", "source", "name"),
    [
        ("auto", templates.HERMES, "hermes"),
        ("auto", templates.QWEN3_CODER, "qwen3_coder"),
        ("auto", templates.LLAMA3, "llama3"),
        ("auto", templates.MISTRAL, "mistral"),
        ("auto", templates.DEEPSEEK_NAMED, "deepseek"),
        ("json", templates.PLAIN, "json"),
        ("json", "", "json"),
        ("hermes", "{{ tools }}", "hermes"),
        ("mistral", "{{ tools }}", "mistral"),
    ],
)
def test_format_of_a_model(setting, source, name) -> None:
    assert tools_of(setting, source).format.name == name


@pytest.mark.parametrize(
    ("setting", "source", "reason"),
    [
        ("auto", templates.PLAIN, "no tools"),
        ("auto", "", "no tools"),
        ("hermes", "{% for tool_call in message.tool_calls %}", "no tools"),
        ("none", templates.HERMES, "none"),
        ("auto", "{{ tools }}<function=x>{}</function>", "an XML format"),
        ("auto", "{{ tools }}<tool_call>x<arg_key>", "GLM"),
        ("auto", "{{ tools }}[unheard of]", "not known"),
    ],
)
def test_models_whose_tools_cannot_be_called(setting, source, reason) -> None:
    found = tools_of(setting, source)
    assert found.format is None
    assert reason in found.refusal


@pytest.mark.parametrize("stored", ["config", "files"])
def test_a_template_of_its_own_for_tools(stored, text_directory) -> None:
    named = {"default": templates.PLAIN, "tool_use": templates.HERMES}
    if stored == "config":
        entries = [{"name": name, "template": text} for name, text in named.items()]
        path = text_directory("bytes", chat_template=entries)
    else:
        path = text_directory("bytes")
        (path / "chat_template.jinja").write_text(named["default"])
        (path / "additional_chat_templates").mkdir()
        (path / "additional_chat_templates" / "tool_use.jinja").write_text(named["tool_use"])
    template = ChatTemplate.load(path)
    assert template.source == templates.HERMES
    theirs = AutoTokenizer.from_pretrained(path)
    for tools in (None, SHOWN):
        ours = template.render([{"role": "user", "content": "Hi"}], RenderOptions(tools=tools))
        assert ours == theirs.apply_chat_template(
            [{"role": "user", "content": "Hi"}],
            tools=tools,
            tokenize=False,
            add_generation_prompt=True,
        )


def test_tools_in_a_system_message(text_directory) -> None:
    """A template that knows no tools gets them, the calls and the results as text."""
    tools = tuple(Tool(each["function"]["name"], SCHEMA, False, each) for each in SHOWN)
    messages = chat_messages([{"role": "system", "content": "Be brief."}, *talk(CALLS)])
    told = described(messages, AskedTools(tools))
    template = ChatTemplate.load(text_directory("bytes", chat_template=templates.PLAIN))
    prompt = template.render(told)
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
    assert told[0]["content"].startswith("Be brief.\n\n")
    for each in SHOWN:
        assert json.dumps(each["function"]) in prompt
    rules = OutputRules(format=tools_of("json", "").format, names=frozenset({"get_weather", "add"}))
    found = divided(rules, told[2]["content"])
    assert [(tool, json.loads(each)) for tool, each in found.calls] == [
        (tool, json.loads(each)) for tool, each in CALLS
    ]
    assert told[3]["content"].count("12 °C") == 2
    assert described(messages, None)[0] == messages[0]
    assert described(messages[1:], AskedTools(tools))[0]["role"] == "system"


def ending(source, text_directory, **kwargs) -> str:
    template = ChatTemplate.load(text_directory("bytes", chat_template=source))
    return template.render([{"role": "user", "content": "<think>"}], RenderOptions(kwargs=kwargs))


@pytest.mark.parametrize(
    ("source", "kwargs", "expected"),
    [
        (templates.HERMES, {}, PromptEnd.BEFORE),
        (templates.HERMES, {"enable_thinking": False}, PromptEnd.AFTER),
        (templates.DEEPSEEK, {}, PromptEnd.WITHIN),
        (templates.DEEPSEEK_NAMED, {}, PromptEnd.AFTER),
        (templates.DEEPSEEK_NAMED, {"thinking": True}, PromptEnd.WITHIN),
    ],
)
def test_where_a_prompt_leaves_the_model(source, kwargs, expected, text_directory) -> None:
    tags = tags_of("auto", source, lambda text: False)
    assert tags.name == "think"
    assert prompt_end(tags, ending(source, text_directory, **kwargs), None) is expected


def test_continuing_a_message() -> None:
    tags = tags_of("think", "", lambda text: False)
    assert prompt_end(tags, "", "<think>Hm") is PromptEnd.WITHIN
    assert prompt_end(tags, "<think>", "<think>Hm</think> So") is PromptEnd.AFTER


def test_tags_of_a_model() -> None:
    known = {"[THINK]", "[/THINK]"}
    assert tags_of("auto", "", known.__contains__).name == "mistral"
    assert tags_of("auto", "", {"<think>"}.__contains__) is None
    assert tags_of("none", templates.HERMES, known.__contains__) is None
    assert tags_of("seed", templates.HERMES, known.__contains__).name == "seed"


def test_reasoning_of_earlier_answers_reaches_the_template(text_directory) -> None:
    template = ChatTemplate.load(text_directory("bytes", chat_template=templates.HERMES))
    for name in ("reasoning", "reasoning_content"):
        answer = {"role": "assistant", "content": "Yes", name: "Hm"}
        messages = chat_messages([{"role": "user", "content": "Hi"}, answer])
        prompt = template.render(messages)
        text = prompt.split("<|im_start|>assistant\n")[1].split("<|im_end|>")[0]
        found = divided(OutputRules(tags=tags_of("think", "", bool)), text)
        assert found == Divided("Yes", "Hm")
