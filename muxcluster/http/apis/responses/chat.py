"""Makes chat requests of Responses requests."""

from collections.abc import Mapping, Sequence
from functools import partial

from muxcluster.core.errors import InvalidValue, UnsupportedParameter
from muxcluster.core.inputs.clip import plain
from muxcluster.http.apis.asked import Asked, naming
from muxcluster.http.apis.reading import (
    Json,
    as_list,
    as_object,
    check_size,
    given,
    shared_fields,
    text_of,
    unsupported,
)
from muxcluster.http.apis.responses.answers import ResponseAnswers
from muxcluster.http.apis.responses.body import ResponsesBody
from muxcluster.text.schemas import ChatBody
from muxcluster.text.validation.body import parse
from muxcluster.text.validation.tool_messages import text_field

# Places in the chat differ from those in the request: the list is named instead.
NAMES = (
    (r"messages.*", "input"),
    (r"max_completion_tokens", "max_output_tokens"),
    (r"tools\[(\d+)\]\.function", r"tools[\1]"),
    (r"tool_choice\.function", "tool_choice"),
    (r"response_format(\.json_schema)?", "text.format"),
    (r"reasoning_effort", "reasoning.effort"),
)
_TEXT = frozenset({"text", "input_text", "output_text"})
_REASONING = frozenset({"reasoning_text", "summary_text"})
_ROLES = ("user", "assistant", "system", "developer")
_FORMATS = ("text", "json_object", "json_schema")


def response_body(data: object, *, lenient: bool) -> ResponsesBody:
    """Return a decoded body. Raises RequestError naming the field."""
    return parse(ResponsesBody, data, lenient=lenient)


def asked_response(data: object, *, lenient: bool) -> Asked:
    """Return the request in a decoded body, where no response is kept. Raises RequestError."""
    body = response_body(data, lenient=lenient)
    for name in ("store", "background", "previous_response_id"):
        if getattr(body, name) not in (None, False):
            raise not_stored(name)
    return chat_of(body)


def chat_of(body: ResponsesBody, before: Sequence[Json] = ()) -> Asked:
    """Return a request as a chat. before: items of the conversation that `input` goes on with.

    Raises RequestError naming the field.
    """
    whole = body
    if before:
        whole = body.model_copy(update={"input": [*before, *input_items(body)]})
    fields = chat_fields(whole)
    with naming(NAMES):
        chat = parse(ChatBody, fields)
    return Asked(chat, partial(ResponseAnswers, body), NAMES)


def input_items(body: ResponsesBody) -> list[Json]:
    """Return the input of a request as items, of which only `chat_fields` checks what they hold."""
    given = body.input
    if isinstance(given, str):
        part = {"type": "input_text", "text": given}
        return [{"type": "message", "role": "user", "content": [part]}]
    return as_list(given, "input")


def not_stored(param: str) -> UnsupportedParameter:
    """Return the error of what would need responses that are kept."""
    message = (
        f"{param} needs server.store, which is not set: no response is kept. "
        "Send the whole conversation as input, with store left out or false"
    )
    return UnsupportedParameter(message, param)


def chat_fields(body: ResponsesBody) -> Json:
    """Return the fields of a chat. Raises RequestError naming the field."""
    effort = None if body.reasoning is None else body.reasoning.effort
    form = None if body.text is None else body.text.format
    fields: dict[str, object] = {
        "messages": chat_messages(body.input, body.instructions),
        "max_completion_tokens": body.max_output_tokens,
        "stream": body.stream,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "parallel_tool_calls": body.parallel_tool_calls,
        "service_tier": body.service_tier,
        "reasoning_effort": effort,
        "response_format": None if form is None else _response_format(form),
        "tool_choice": _tool_choice(body.tool_choice),
    }
    if body.tools:
        tools = as_list(body.tools, "tools")
        fields["tools"] = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
    return given(fields) | shared_fields(body)


def chat_messages(value: object, instructions: str | None) -> list[Json]:
    """Return `input` and `instructions` as a chat's messages. Raises RequestError."""
    if isinstance(value, str):
        told: list[Json] = [{"role": "user", "content": value}]
    else:
        items = as_list(value, "input")
        check_size(items, "input")
        conversation = _Conversation()
        for i, item in enumerate(items):
            conversation.add(as_object(item, f"input[{i}]"), f"input[{i}]")
        told = conversation.told()
    if instructions:
        told.insert(0, {"role": "system", "content": instructions})
    return _with_one_beginning(told)


def _with_one_beginning(told: list[Json]) -> list[Json]:
    """Return messages whose first ones, if several are the system's, are one."""
    num_first = 0
    while num_first < len(told) and told[num_first]["role"] in ("system", "developer"):
        num_first += 1
    if num_first < 2:
        return told
    text = "\n\n".join(message["content"] for message in told[:num_first])
    return [{"role": "system", "content": text}, *told[num_first:]]


class _Conversation:
    """Puts together what a chat has in one message: reasoning, text and calls of an answer."""

    def __init__(self) -> None:
        self._told: list[Json] = []

    def told(self) -> list[Json]:
        """Return the messages, without answers of which there is only reasoning."""
        return [each for each in self._told if not _is_empty(each)]

    def add(self, item: Mapping[str, object], param: str) -> None:
        """Add one item of `input`. Raises RequestError."""
        match item.get("type", "message"):
            case "message":
                self._message(item, param)
            case "function_call":
                self._answer().setdefault("tool_calls", []).append(_call(item, param))
            case "function_call_output":
                output = text_of(item.get("output"), f"{param}.output", _TEXT)
                call_id = text_field(item, "call_id", param)
                self._told.append({"role": "tool", "tool_call_id": call_id, "content": output})
            case "reasoning":
                self._told.append(_thought(item, param))
            case "item_reference":
                message = f"{param}: items are not referred to: send them, or previous_response_id"
                raise UnsupportedParameter(message, f"{param}.id")
            case kind:
                raise unsupported(kind, param)

    def _answer(self) -> Json:
        """Return the message of the present answer."""
        if not self._told or self._told[-1]["role"] != "assistant":
            self._told.append({"role": "assistant", "content": ""})
        return self._told[-1]

    def _message(self, item: Mapping[str, object], param: str) -> None:
        role = text_field(item, "role", param)
        if role not in _ROLES:
            message = f"{param}.role must be one of {', '.join(_ROLES)}"
            raise InvalidValue(message, f"{param}.role")
        content = text_of(item.get("content"), f"{param}.content", _TEXT)
        if role == "assistant" and self._told and _is_empty(self._told[-1]):
            self._told[-1]["content"] = content
        else:
            self._told.append({"role": role, "content": content})


def _is_empty(message: Json) -> bool:
    """True for an answer that has neither text nor calls yet."""
    is_answer = message["role"] == "assistant"
    return is_answer and not message["content"] and "tool_calls" not in message


def _thought(item: Mapping[str, object], param: str) -> Json:
    """Return an answer that begins with reasoning; a summary stands for what is not there."""
    name = "content" if item.get("content") else "summary"
    text = text_of(item.get(name) or [], f"{param}.{name}", _REASONING)
    return {"role": "assistant", "content": "", "reasoning_content": text}


def _call(item: Mapping[str, object], param: str) -> Json:
    function = {
        "name": text_field(item, "name", param),
        "arguments": text_field(item, "arguments", param),
    }
    call_id = text_field(item, "call_id", param)
    return {"id": call_id, "type": "function", "function": function}


def _tool(value: object, param: str) -> Json:
    tool = as_object(value, param)
    if tool.get("type") != "function":
        raise unsupported(tool.get("type"), param)
    function = {name: item for name, item in tool.items() if name != "type"}
    return {"type": "function", "function": given(function)}


def _tool_choice(value: object) -> object:
    """Return the `tool_choice` of a chat."""
    if value is None or isinstance(value, str):
        return value
    choice = as_object(value, "tool_choice")
    kind = choice.get("type")
    if kind != "function":
        message = f"tool_choice of type {plain(f'{kind}')} is not supported"
        raise UnsupportedParameter(message, "tool_choice")
    return {"type": "function", "function": {"name": text_field(choice, "name", "tool_choice")}}


def _response_format(form: Mapping[str, object]) -> Json:
    """Return the `response_format` of a chat."""
    kind = form.get("type")
    if kind not in _FORMATS:
        raise unsupported(kind, "text.format")
    rest = {name: value for name, value in form.items() if name != "type"}
    return {"type": kind, "json_schema": rest} if kind == "json_schema" else {"type": kind, **rest}
