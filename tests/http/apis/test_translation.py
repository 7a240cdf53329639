"""Conversations in other APIs become the chat messages that they stand for."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.http.apis.messages.chat import chat_messages as of_messages
from muxcluster.http.apis.responses.chat import chat_messages as of_responses
from muxcluster.text.validation.prompts import chat_messages as checked
from tests.amounts import examples

TEXT = st.text(min_size=1, max_size=5)
ARGUMENTS = st.dictionaries(TEXT, st.integers(0, 9) | TEXT, max_size=2)
Chat = list[dict[str, Any]]


@st.composite
def turns(draw: st.DrawFn) -> Chat:
    """A user's message, and an answer with the results of its calls."""
    asked = {"role": "user", "content": draw(TEXT)}
    answer: dict[str, Any] = {"role": "assistant", "content": draw(st.just("") | TEXT)}
    names = draw(st.lists(TEXT, min_size=0 if answer["content"] else 1, max_size=3))
    if draw(st.booleans()):
        answer["reasoning_content"] = draw(TEXT)
    calls = [{"name": name, "arguments": draw(ARGUMENTS)} for name in names]
    if calls:
        answer["tool_calls"] = [
            {"id": f"id{i}", "type": "function", "function": call} for i, call in enumerate(calls)
        ]
    results = [
        {"role": "tool", "tool_call_id": f"id{i}", "content": draw(st.just("") | TEXT)}
        for i in range(len(calls))
    ]
    return [asked, answer, *results]


@st.composite
def chats(draw: st.DrawFn) -> Chat:
    told = [{"role": "system", "content": draw(TEXT)}] if draw(st.booleans()) else []
    for turn in draw(st.lists(turns(), max_size=3)):
        told += turn
    return [*told, {"role": "user", "content": draw(TEXT)}]


def as_messages(chat: Chat) -> tuple[Chat, str | None]:
    """The chat as Anthropic's client would send it: results and the next text in one message."""
    system = chat[0]["content"] if chat[0]["role"] == "system" else None
    told: Chat = []
    for message in chat[system is not None :]:
        if message["role"] == "assistant":
            told.append({"role": "assistant", "content": _blocks(message)})
            continue
        block: dict[str, Any] = {"type": "text", "text": message["content"]}
        if message["role"] == "tool":
            block = {
                "type": "tool_result",
                "tool_use_id": message["tool_call_id"],
                "content": [{"type": "text", "text": message["content"]}],
            }
        if told and told[-1]["role"] == "user":
            told[-1]["content"].append(block)
        else:
            told.append({"role": "user", "content": [block]})
    return told, system


def _blocks(message: dict[str, Any]) -> Chat:
    blocks: Chat = []
    if "reasoning_content" in message:
        thinking = message["reasoning_content"]
        blocks.append({"type": "thinking", "thinking": thinking, "signature": ""})
    if message["content"]:
        blocks.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        use = {"id": call["id"], "name": function["name"], "input": function["arguments"]}
        blocks.append({"type": "tool_use", **use})
    return blocks


def as_items(chat: Chat) -> tuple[Chat, str | None]:
    """The chat as the input and the instructions of a Responses request."""
    instructions = chat[0]["content"] if chat[0]["role"] == "system" else None
    items: Chat = []
    for message in chat[instructions is not None :]:
        match message["role"]:
            case "tool":
                output = {"call_id": message["tool_call_id"], "output": message["content"]}
                items.append({"type": "function_call_output", **output})
            case "user":
                part = {"type": "input_text", "text": message["content"]}
                items.append({"role": "user", "content": [part]})
            case _:
                items += _items(message)
    return items, instructions


def _items(message: dict[str, Any]) -> Chat:
    items: Chat = []
    if "reasoning_content" in message:
        part = {"type": "reasoning_text", "text": message["reasoning_content"]}
        items.append({"type": "reasoning", "id": "rs", "summary": [], "content": [part]})
    if message["content"]:
        part = {"type": "output_text", "text": message["content"], "annotations": []}
        items.append({"type": "message", "role": "assistant", "id": "msg", "content": [part]})
    for call in message.get("tool_calls", ()):
        items.append(
            {
                "type": "function_call",
                "call_id": call["id"],
                "name": call["function"]["name"],
                "arguments": _json(call["function"]["arguments"]),
            }
        )
    return items


def _json(value: object) -> str:
    return json.dumps(value)


@settings(max_examples=examples(100, 1000), deadline=None)
@given(chats())
def test_a_conversation_is_the_same_in_every_api(chat: Chat) -> None:
    expected = checked(chat)
    assert checked(of_messages(*as_messages(chat))) == expected
    assert checked(of_responses(*as_items(chat))) == expected


def test_several_texts_are_lines() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    user = {"role": "user", "content": parts}
    assert of_messages([user, {"role": "user", "content": "c"}], parts) == [
        {"role": "system", "content": "a\nb"},
        {"role": "user", "content": "a\nb\nc"},
    ]
    assert of_responses([user], None) == [{"role": "user", "content": "a\nb"}]


def test_reasoning_without_an_answer_is_left_out() -> None:
    thought = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "x"}]}
    user = {"role": "user", "content": "Hi"}
    assert of_responses([user, thought, user], None) == [user, user]
    answer = {"role": "assistant", "content": "Yes."}
    assert of_responses([user, thought, answer], None)[1]["reasoning_content"] == "x"
