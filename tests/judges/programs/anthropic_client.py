"""Anthropic's client for Python."""

import anthropic
from checks import MODEL, URL, run

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
USER = [{"role": "user", "content": "Hi"}]
TOOL = {
    "name": "weather",
    "description": "Tells it.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def message():
    answer = client.messages.create(model=MODEL, messages=USER, max_tokens=8)
    assert (answer.role, answer.type) == ("assistant", "message")
    assert answer.usage.output_tokens > 0


def streamed():
    with client.messages.stream(model=MODEL, messages=USER, max_tokens=8, system="Be brief.") as s:
        kinds = [event.type for event in s]
        final = s.get_final_message()
    assert kinds[0] == "message_start" and "message_stop" in kinds
    assert final.usage.output_tokens > 0


def tools():
    answer = client.messages.create(
        model=MODEL,
        messages=USER,
        max_tokens=600,
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "weather"},
    )
    (block,) = [each for each in answer.content if each.type == "tool_use"]
    assert isinstance(block.input["city"], str)


def count_tokens():
    assert client.messages.count_tokens(model=MODEL, messages=USER).input_tokens > 0


def errors():
    try:
        client.messages.create(model="nobody", messages=USER, max_tokens=8)
    except anthropic.NotFoundError as error:
        assert error.body["type"] == "error"
    else:
        raise AssertionError("nobody answered")


run(message, streamed, tools, count_tokens, errors)
