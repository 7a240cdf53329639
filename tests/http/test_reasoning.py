"""Reasoning over HTTP, by the real openai client against a model that says what it is told."""

import openai
import pytest

from muxcluster.text.tools.harmony import MARKS as MARKS_OF_CHANNELS
from tests.http.test_tools import CALL, TOOLS, called
from tests.http.tool_models import gathered, make_model, served
from tests.text.tools import templates

TAGS = ("<think>", "</think>")
MARKS = ("<tool_call>", "</tool_call>")
SAYS = "<think>\nHm, so.\n</think>\n\nYes, it is."


@pytest.fixture(scope="module")
def hybrid_dir(tmp_path_factory):
    """Thinks unless it is told not to; the tags are tokens that are shown."""
    directory = tmp_path_factory.mktemp("models") / "hybrid"
    return make_model(directory, templates.HERMES, plain=(*TAGS, *MARKS))


@pytest.fixture(scope="module")
def thinking_dir(tmp_path_factory):
    """Its template opens the tag; the tags are special tokens."""
    directory = tmp_path_factory.mktemp("models") / "thinking"
    return make_model(directory, templates.DEEPSEEK, special=TAGS)


@pytest.fixture
def model(hybrid_dir):
    with served(hybrid_dir) as model:
        model.says = [SAYS]
        yield model


def test_a_whole_answer(model) -> None:
    answer = model.ask()
    message = answer.choices[0].message
    assert (message.content, answer.choices[0].finish_reason) == ("Yes, it is.", "stop")
    assert message.reasoning_content == message.reasoning == "Hm, so."
    reasoning = model.tokenizer.encode("<think>\nHm, so.\n</think>", False)
    assert answer.usage.completion_tokens_details.reasoning_tokens == len(reasoning)
    assert answer.usage.completion_tokens == len(model.tokenizer.encode(SAYS, False)) + 1


@pytest.mark.parametrize("width", [1, 4, 100])
def test_a_stream(model, width) -> None:
    model.backend.width = width
    chunks = list(model.ask(stream=True, stream_options={"include_usage": True}))
    found = gathered(chunks)
    assert (found["content"], found["reasoning"]) == ("Yes, it is.", "Hm, so.")
    assert found["finish"] == "stop"
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens > 3
    both = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert not any(delta.content and getattr(delta, "reasoning", None) for delta in both)


def test_a_template_that_opens_the_tag(thinking_dir) -> None:
    with served(thinking_dir) as model:
        model.says = ["Hm, so.\n</think>\n\nYes, it is."]
        answer = model.ask()
        assert model.prompt().endswith("<think>\n")
        message = answer.choices[0].message
        assert (message.content, message.reasoning_content) == ("Yes, it is.", "Hm, so.")
        found = gathered(model.ask(stream=True))
        assert (found["content"], found["reasoning"]) == ("Yes, it is.", "Hm, so.")
        # completions are text as it is, without special tokens
        whole = model.client.completions.create(model="tiny", prompt="x", max_tokens=100)
        assert whole.choices[0].text == "Hm, so.\n\n\nYes, it is."


def test_reasoning_that_is_cut_is_reasoning(model) -> None:
    answer = model.ask(max_tokens=3)
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "length"
    assert message.content == ""
    assert "Hm, so.".startswith(message.reasoning_content)
    assert answer.usage.completion_tokens_details.reasoning_tokens == 3


def test_switches_of_the_template(model) -> None:
    model.says = ["No."]
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    answer = model.ask(extra_body=off)
    assert model.prompt().endswith("<think>\n\n</think>\n\n")
    assert answer.choices[0].message.content == "No."
    assert not hasattr(answer.choices[0].message, "reasoning_content")
    model.ask(reasoning_effort="none")
    assert model.prompt().endswith("<think>\n\n</think>\n\n")
    with pytest.raises(openai.BadRequestError, match="does not read reasoning_effort") as error:
        model.ask(reasoning_effort="high")
    assert (error.value.code, error.value.param) == ("unsupported_parameter", "reasoning_effort")
    on = {"chat_template_kwargs": {"enable_thinking": True}}
    with pytest.raises(openai.BadRequestError, match="contradict"):
        model.ask(reasoning_effort="none", extra_body=on)


def test_an_effort_that_the_template_reads(tmp_path) -> None:
    source = templates.PLAIN + "{{ 'effort: ' + (reasoning_effort or 'unset') }}"
    with served(make_model(tmp_path / "effort", source)) as model:
        for effort in ("none", "minimal", "low", "medium", "high", "xhigh"):
            model.ask(reasoning_effort=effort)
            assert model.prompt().endswith(f"effort: {effort}")
        with pytest.raises(openai.BadRequestError) as error:
            model.ask(reasoning_effort="most")
        assert error.value.param == "reasoning_effort"


def test_reasoning_that_is_not_wanted(model) -> None:
    without = {"include_reasoning": False}
    answer = model.ask(extra_body=without)
    assert answer.choices[0].message.content == "Yes, it is."
    assert not hasattr(answer.choices[0].message, "reasoning")
    assert answer.usage.completion_tokens_details.reasoning_tokens > 3
    found = gathered(model.ask(extra_body=without, stream=True))
    assert (found["content"], found["reasoning"]) == ("Yes, it is.", "")


def test_reasoning_that_is_not_to_be_divided(model) -> None:
    together = {"separate_reasoning": False}
    assert model.ask(extra_body=together).choices[0].message.content == SAYS


def test_a_model_that_is_configured_not_to_think(hybrid_dir) -> None:
    with served(hybrid_dir, reasoning="none") as model:
        model.says = [SAYS]
        assert model.ask().choices[0].message.content == SAYS


def test_earlier_reasoning_reaches_the_template(model) -> None:
    question = {"role": "user", "content": "Is it?"}
    answer = model.ask(messages=[question]).choices[0].message
    model.ask(messages=[question, answer, {"role": "user", "content": "Sure?"}])
    assert "assistant\n<think>\nHm, so.\n</think>\n\nYes, it is.<|im_end|>" in model.prompt()
    with pytest.raises(openai.BadRequestError) as error:
        wrong = {"role": "assistant", "content": "x", "reasoning_content": 1}
        model.ask(messages=[question, wrong])
    assert error.value.param == "messages[1].reasoning_content"


def test_tools_after_reasoning(model) -> None:
    model.says = [f"<think>\nHm, so.\n</think>\n\n{CALL}"]
    message = model.ask(tools=TOOLS).choices[0].message
    assert (message.reasoning_content, message.content) == ("Hm, so.", None)
    assert [name for name, _ in called(message)] == ["get_weather"]
    found = gathered(model.ask(tools=TOOLS, stream=True))
    assert (found["reasoning"], found["content"]) == ("Hm, so.", "")
    assert found["finish"] == "tool_calls"


def test_a_grammar_begins_after_the_reasoning(model, thinking_dir) -> None:
    end = (model.tokenizer.token_id("</think>"),)
    model.ask(tools=TOOLS, tool_choice="required")
    assert model.backend.requests[-1].sampling.constraint.begins_after == end
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    model.ask(tools=TOOLS, tool_choice="required", extra_body=off)
    assert model.backend.requests[-1].sampling.constraint.begins_after == ()
    with served(thinking_dir) as other:
        other.ask(tools=TOOLS, tool_choice="required")
        end = (other.tokenizer.token_id("</think>"),)
        assert other.backend.requests[-1].sampling.constraint.begins_after == end


def test_a_tag_of_several_tokens_tells_no_grammar_where_to_begin(tmp_path) -> None:
    with served(make_model(tmp_path / "untagged", templates.HERMES)) as model:
        model.says = [SAYS]
        assert model.ask(tools=TOOLS).choices[0].message.reasoning_content == "Hm, so."
        with pytest.raises(openai.BadRequestError, match="no token of tiny"):
            model.ask(tools=TOOLS, tool_choice="required")


CHANNELS = (
    "<|channel|>analysis<|message|>Hm, so.<|end|><|start|>assistant"
    "<|channel|>final<|message|>Yes, it is."
)
CALLS = (
    "<|channel|>analysis<|message|>Hm, so.<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Rome"}'
)


@pytest.fixture(scope="module")
def channel_dir(tmp_path_factory):
    """Writes messages with channels, as gpt-oss does."""
    directory = tmp_path_factory.mktemp("models") / "channels"
    return make_model(directory, templates.HARMONY, special=MARKS_OF_CHANNELS)


@pytest.mark.parametrize("width", [1, 3, 100])
def test_messages_with_channels(channel_dir, width) -> None:
    with served(channel_dir) as model:
        model.says = [CHANNELS]
        model.backend.width = width
        answer = model.ask(reasoning_effort="low")
        assert "Reasoning: low" in model.prompt()
        message = answer.choices[0].message
        assert (message.content, message.reasoning_content) == ("Yes, it is.", "Hm, so.")
        assert answer.usage.completion_tokens_details.reasoning_tokens >= len("Hm, so.") / 4
        found = gathered(model.ask(stream=True))
        assert (found["content"], found["reasoning"]) == ("Yes, it is.", "Hm, so.")
        together = model.ask(extra_body={"separate_reasoning": False}).choices[0].message
        assert together.content == "Hm, so.\nYes, it is."
        question = {"role": "user", "content": "Is it?"}
        model.ask(messages=[question, message, {"role": "user", "content": "Sure?"}])
        assert "assistant<|channel|>final<|message|>Yes, it is.<|end|>" in model.prompt()
    with served(channel_dir, reasoning="none", tool_format="none") as model:
        model.says = [CHANNELS]
        both = {"skip_special_tokens": False}
        assert model.ask(extra_body=both).choices[0].message.content.startswith(CHANNELS)


def test_calls_in_channels(channel_dir) -> None:
    with served(channel_dir) as model:
        model.says = [CALLS]
        answer = model.ask(tools=TOOLS)
        message = answer.choices[0].message
        assert (message.content, message.reasoning_content) == (None, "Hm, so.")
        assert called(message) == [("get_weather", '{"city": "Rome"}')]
        assert answer.choices[0].finish_reason == "tool_calls"
        found = gathered(model.ask(tools=TOOLS, stream=True))
        assert [call["arguments"] for call in found["calls"]] == ['{"city": "Rome"}']
        call_id = message.tool_calls[0].id
        result = {"role": "tool", "tool_call_id": call_id, "content": "31"}
        model.ask(tools=TOOLS, messages=[{"role": "user", "content": "Hi"}, message, result])
        assert "<|start|>assistant<|channel|>analysis<|message|>Hm, so.<|end|>" in model.prompt()
        assert "<|start|>functions.get_weather to=assistant" in model.prompt()


def test_grammars_of_messages_with_channels(channel_dir) -> None:
    """A call's has the reasoning, too; another begins with the answer."""
    with served(channel_dir) as model:
        model.says = [CALLS]
        model.ask(tools=TOOLS, tool_choice="required")
        constraint = model.backend.requests[-1].sampling.constraint
        assert constraint.begins_after == ()
        assert constraint.grammar.startswith('{"messages"')
        model.ask(response_format={"type": "json_object"})
        constraint = model.backend.requests[-1].sampling.constraint
        begin = model.tokenizer.encode("<|channel|>final<|message|>", False)
        assert constraint.begins_after == tuple(begin)
