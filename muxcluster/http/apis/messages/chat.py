"""Makes chat requests of Messages requests."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from muxcluster.core.errors import InvalidValue, MissingParameter, UnsupportedParameter
from muxcluster.core.inputs.clip import plain
from muxcluster.http.apis.asked import Asked, naming
from muxcluster.http.apis.messages.answers import MessageAnswers
from muxcluster.http.apis.messages.body import CountTokensBody, MessagesBody
from muxcluster.http.apis.reading import (
    Json,
    as_list,
    as_object,
    check_size,
    flag,
    given,
    shared_fields,
    text_of,
    unsupported,
)
from muxcluster.text.schemas import ChatBody
from muxcluster.text.validation.body import parse
from muxcluster.text.validation.tool_messages import text_field

# Places in the chat differ from those in the request: the list is named instead.
NAMES = (
    (r"messages.*", "messages"),
    (r"tools\[(\d+)\]\.function\.parameters", r"tools[\1].input_schema"),
    (r"tools\[(\d+)\]\.function", r"tools[\1]"),
    (r"response_format(\.json_schema)?", "output_config.format"),
    (r"reasoning_effort", "output_config.effort"),
)
_TEXT = frozenset({"text"})
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def asked_message(data: object, *, lenient: bool) -> Asked:
    """Return the request in a decoded body. Raises RequestError naming the field."""
    body = parse(MessagesBody, data, lenient=lenient)
    fields = {
        "max_completion_tokens": body.max_tokens,
        "stream": body.stream,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "stop": body.stop_sequences,
        "service_tier": "flex" if body.service_tier == "flex" else None,
        "include_reasoning": body.thinking is not None and body.thinking.is_shown,
    }
    names = (*NAMES, ("max_completion_tokens", "max_tokens"))
    chat_fields = prompt_fields(body) | given(fields)
    with naming(names):
        chat = parse(ChatBody, chat_fields)
    return Asked(chat, MessageAnswers, names)


def asked_count(data: object, *, lenient: bool) -> ChatBody:
    """Return the chat whose prompt is to be counted. Raises RequestError naming the field."""
    body = parse(CountTokensBody, data, lenient=lenient)
    chat_fields = prompt_fields(body)
    with naming(NAMES):
        return parse(ChatBody, chat_fields)


def prompt_fields(body: CountTokensBody) -> Json:
    """Return the fields of a chat that make the prompt. Raises RequestError naming the field."""
    messages = chat_messages(body.messages, body.system)
    fields: Json = {"messages": messages, **shared_fields(body)}
    if messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]:
        fields["continue_final_message"] = True  # the answer begins with it
    if body.tools:
        tools = as_list(body.tools, "tools")
        fields["tools"] = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
    if body.tool_choice is not None:
        fields |= _tool_choice(as_object(body.tool_choice, "tool_choice"))
    if body.thinking is not None and body.thinking.type != "adaptive":
        thinks = body.thinking.type == "enabled"
        variables = {"enable_thinking": thinks, **fields.get("chat_template_kwargs", {})}
        fields["chat_template_kwargs"] = variables
    if body.output_config is not None:
        form, effort = body.output_config.format, body.output_config.effort
        fields |= given({"response_format": _output_format(form), "reasoning_effort": effort})
    return fields


def chat_messages(value: object, system: object) -> list[Json]:
    """Return `messages` and `system` as a chat's messages.

    Results of tools are messages of their own, and neighbouring texts of the user are one message.
    Raises RequestError naming the field.
    """
    messages = as_list(value, "messages")
    check_size(messages, "messages")
    told: list[Json] = []
    if system is not None and (text := text_of(system, "system", _TEXT)):
        told.append({"role": "system", "content": text})
    for i, message in enumerate(messages):
        param = f"messages[{i}]"
        fields = as_object(message, param)
        role = text_field(fields, "role", param)
        if role not in ("user", "assistant"):
            raise InvalidValue(f"{param}.role must be user or assistant", f"{param}.role")
        if fields.get("content") is None:
            raise MissingParameter(f"missing required field {param}.content", f"{param}.content")
        if role == "user":
            told += _of_user(fields["content"], f"{param}.content")
        else:
            told.append(_of_assistant(fields["content"], f"{param}.content"))
    return _with_joined_texts(told)


def _with_joined_texts(messages: Sequence[Json]) -> list[Json]:
    """Return the messages, texts of the user after one another as one."""
    told: list[Json] = []
    for role, group in groupby(messages, key=lambda message: message["role"]):
        if role == "user":
            # at once: text by text would copy what there is for each of thousands
            told.append({"role": role, "content": "\n".join(each["content"] for each in group)})
        else:
            told += group
    return told


def _of_user(content: object, param: str) -> list[Json]:
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    blocks = as_list(content, param)
    return [_block_of_user(block, f"{param}[{i}]") for i, block in enumerate(blocks)]


def _block_of_user(value: object, param: str) -> Json:
    block = as_object(value, param)
    if block.get("type") == "text":
        return {"role": "user", "content": text_field(block, "text", param)}
    if block.get("type") != "tool_result":
        raise unsupported(block.get("type"), param)
    result = block.get("content")
    text = "" if result is None else text_of(result, f"{param}.content", _TEXT)
    # a chat has no other place for it
    content = f"Error: {text}" if flag(block, "is_error", param) else text
    call_id = text_field(block, "tool_use_id", param)
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _of_assistant(content: object, param: str) -> Json:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts, thoughts, calls = [], [], []
    for i, value in enumerate(as_list(content, param)):
        at = f"{param}[{i}]"
        block = as_object(value, at)
        match block.get("type"):
            case "text":
                texts.append(text_field(block, "text", at))
            case "thinking":
                thoughts.append(text_field(block, "thinking", at))
            case "tool_use":
                calls.append(_call(block, at))
            case kind:
                raise unsupported(kind, at)
    message: Json = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: Mapping[str, object], param: str) -> Json:
    function = {
        "name": text_field(block, "name", param),
        "arguments": as_object(block.get("input"), f"{param}.input"),
    }
    return {"id": text_field(block, "id", param), "type": "function", "function": function}


def _tool(value: object, param: str) -> Json:
    tool = as_object(value, param)
    if tool.get("type") not in (None, "custom"):
        raise unsupported(tool["type"], param)
    if tool.get("input_schema") is None:
        at = f"{param}.input_schema"
        raise MissingParameter(f"missing required field {at}", at)
    names = {"name": "name", "description": "description", "input_schema": "parameters"}
    function = given({chat: tool.get(name) for name, chat in names.items()})
    return {"type": "function", "function": function | given({"strict": tool.get("strict")})}


def _tool_choice(choice: Mapping[str, object]) -> Json:
    """Return `tool_choice` and `parallel_tool_calls` of a chat."""
    kind = text_field(choice, "type", "tool_choice")
    fields: Json = {}
    if flag(choice, "disable_parallel_tool_use", "tool_choice"):
        fields["parallel_tool_calls"] = False
    if kind == "tool":
        name = text_field(choice, "name", "tool_choice")
        return fields | {"tool_choice": {"type": "function", "function": {"name": name}}}
    if kind not in _CHOICES:
        message = f"tool_choice of type {plain(kind)} is not supported"
        raise UnsupportedParameter(message, "tool_choice.type")
    return fields | {"tool_choice": _CHOICES[kind]}


def _output_format(form: Mapping[str, object] | None) -> Json | None:
    """Return the `response_format` of a chat."""
    if form is None:
        return None
    if form.get("type") != "json_schema":
        raise unsupported(form.get("type"), "output_config.format")
    schema = as_object(form.get("schema"), "output_config.format.schema")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
