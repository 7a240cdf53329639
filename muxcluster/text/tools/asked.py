"""The tools of a chat request, checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muxcluster.constraints.schema import check_schema
from muxcluster.core.errors import InvalidValue, MissingParameter, UnsupportedParameter
from muxcluster.core.inputs.clip import clip, plain
from muxcluster.text.schemas import FunctionBody, ToolBody

_MODES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    schema: Mapping[str, Any]  # of the arguments, an object's
    is_strict: bool
    shown: Mapping[str, Any]  # as chat templates read it


@dataclass(frozen=True, slots=True)
class AskedTools:
    """What a request says about tools."""

    tools: tuple[Tool, ...]  # at least one
    needs_call: bool = False  # tool_choice is `required` or names a tool
    only: str | None = None  # the tool that tool_choice names
    may_repeat: bool = True  # several calls in one answer

    @property
    def has_grammar(self) -> bool:
        """True if the output must match a grammar: a call is needed, or a tool is strict."""
        return self.needs_call or any(tool.is_strict for tool in self.callable)

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that may be called."""
        return tuple(tool for tool in self.tools if self.only in (None, tool.name))

    @property
    def shown(self) -> list[Mapping[str, Any]]:
        """The tools for the chat template."""
        return [tool.shown for tool in self.tools]


def asked_tools(
    bodies: Sequence[ToolBody] | None, choice: object = None, *, may_repeat: bool = True
) -> AskedTools | None:
    """Return the tools of a body; None without any, and with `tool_choice: none`.

    The model is not shown tools that it may not call. Checking large schemas takes long. Raises
    InvalidValue, MissingParameter, UnsupportedParameter; the message has the path in a schema.
    """
    mode, only = _choice(choice)
    if not bodies:
        if mode == "required":
            raise InvalidValue("tool_choice needs tools", "tool_choice")
        return None
    tools = tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(bodies))
    names = [tool.name for tool in tools]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise InvalidValue(f"tools[{i}]: two tools are called {name}", f"tools[{i}]")
    if only is not None and only not in names:
        raise InvalidValue(f"tool_choice: no tool is called {clip(only)}", "tool_choice")
    if mode == "none":
        return None
    return AskedTools(tools, mode == "required", only, may_repeat)


def num_schema_chars(tools: Sequence[ToolBody] | None) -> int:
    """Return about how many characters of schemas there are to check."""
    return sum(len(f"{tool.function.parameters}") for tool in tools or ())


def _tool(body: ToolBody, param: str) -> Tool:
    function = body.function
    fields = {
        "name": function.name,
        "description": function.description,
        "parameters": function.parameters,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    schema = _arguments_schema(function, f"{param}.function.parameters")
    return Tool(
        function.name, schema, bool(function.strict), {"type": "function", "function": given}
    )


def _arguments_schema(function: FunctionBody, param: str) -> Mapping[str, Any]:
    """Return the schema of the arguments; none is that of a function without arguments."""
    schema = function.parameters
    if schema is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if schema.get("type", "object") != "object":
        raise InvalidValue(f"{param}.type must be object", f"{param}.type")
    schema = {"type": "object", **schema}
    check_schema(schema, param)
    return schema


def _choice(value: object) -> tuple[str, str | None]:
    """Return the mode and the name of `tool_choice`."""
    if value is None:
        return "auto", None
    if isinstance(value, str):
        if value not in _MODES:
            modes = ", ".join(_MODES)
            message = f"tool_choice must be one of {modes}, or an object that names a function"
            raise InvalidValue(message, "tool_choice")
        return value, None
    if not isinstance(value, Mapping):
        raise InvalidValue("tool_choice must be a string or an object", "tool_choice")
    if value.get("type") != "function":
        kind = plain(f"{value.get('type')}")
        raise UnsupportedParameter(f"tool_choice of type {kind} is not supported", "tool_choice")
    function = value.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if name is None:
        param = "tool_choice.function.name"
        raise MissingParameter(f"missing required field {param}", param)
    if not isinstance(name, str):
        raise InvalidValue("tool_choice.function.name must be a string", "tool_choice")
    return "required", name
