"""Whatever a body holds, it is a chat or an error that names a field."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.core.errors import RequestError
from muxcluster.http.apis.asked import Asked
from muxcluster.http.apis.messages.chat import asked_message
from muxcluster.http.apis.responses.chat import asked_response
from muxcluster.text.schemas import ChatBody
from muxcluster.text.validation.prompts import chat_messages
from tests.amounts import examples

NAMES = re.compile(r"\w+")
WORDS = NAMES.findall(
    "text thinking tool_use tool_result input_text output_text message function_call reasoning "
    "function_call_output item_reference user assistant system developer function custom auto any "
    "tool none required json_schema json_object enabled disabled f x"
)
KEYS = NAMES.findall(
    "type role content text thinking id name input tool_use_id is_error call_id arguments output "
    "summary description parameters input_schema strict schema format effort budget_tokens"
)
LEAVES = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(WORDS) | st.just("{}")
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
    ),
    max_leaves=12,
)
MESSAGES = NAMES.findall("messages system tools tool_choice thinking output_config stop_sequences")
RESPONSES = NAMES.findall("input instructions tools tool_choice text reasoning include metadata")


def bodies(names: list[str], base: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names), VALUES, max_size=3).map(
        lambda fields: {"model": "m", **base, **fields}
    )


ASKED = {"max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
CASES = st.one_of(
    bodies(MESSAGES, ASKED).map(lambda body: (asked_message, body)),
    bodies(RESPONSES, {"input": "Hi"}).map(lambda body: (asked_response, body)),
)


@settings(max_examples=examples(200, 5000), deadline=None)
@given(CASES)
def test_any_body(case: tuple[Callable[..., Asked], dict[str, Any]]) -> None:
    read, body = case
    try:
        asked = read(body, lenient=False)
    except RequestError as error:
        assert error.param is not None
        assert error.param.partition(".")[0].partition("[")[0] in body
        return
    assert isinstance(asked.body, ChatBody)
    try:
        assert chat_messages(asked.body.messages)
    except RequestError as error:
        assert "arguments" in f"{error.param}"  # whose JSON is read here


@pytest.mark.parametrize("read", [asked_message, asked_response])
@pytest.mark.parametrize("body", [None, 5, "x", [], {}])
def test_no_body(read: Callable[..., Asked], body: object) -> None:
    with pytest.raises(RequestError):
        read(body, lenient=False)
