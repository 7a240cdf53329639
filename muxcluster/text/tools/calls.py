"""Reads the calls of one output, in the ways in which model families write them."""

import json
from collections.abc import Callable, Collection, Mapping

from muxcluster.text.tools.parts import Arguments, CallBegun, CallBroken, Part
from muxcluster.text.tools.reader import Malformed, Reader, Steps

_ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
_OTHER_KEYS = frozenset({"id", "type"})
_QWEN_ENDS = ("\n</parameter>", "</parameter>")  # of a value: its last newline is not part of it
_PYTHON_NAMES = {"True": "true", "False": "false", "None": "null"}


class Enough(Exception):
    """A call is complete, and the request wants no second one."""


class Calls:
    """Takes calls as they are read and gives their parts on.

    num_complete: so far. start: where the text of the next call begins.
    """

    def __init__(
        self,
        reader: Reader,
        names: Collection[str],
        give: Callable[[Part], None],
        make_id: Callable[[], str],
        *,
        may_repeat: bool,
        texts: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        """names: of the tools that may be called. texts: `OutputRules.texts`."""
        self.num_complete = 0
        self.start = 0
        self._reader = reader
        self._names = names
        self._give = give
        self._make_id = make_id
        self._may_repeat = may_repeat
        self._texts = texts or {}
        self._num_begun = 0
        self._is_open = False

    def check(self, name: str) -> None:
        """Raise Malformed unless `name` is a tool's."""
        if name not in self._names:
            raise Malformed

    def is_text(self, name: str, argument: str) -> bool:
        """Return True if an argument of the tool `name` is a text, whatever it looks like."""
        return argument in self._texts.get(name, ())

    def begin(self, name: str) -> None:
        """Begin a call. Raises Malformed as `check`."""
        self.check(name)
        self._give(CallBegun(self._num_begun, self._make_id(), name))
        self._num_begun += 1
        self._is_open = True

    def add(self, text: str) -> None:
        """Add to the arguments of the call that has begun."""
        self._give(Arguments(self._num_begun - 1, text))

    def end(self) -> None:
        """Complete the call. Raises Enough if there may be only one."""
        self._is_open = False
        self.num_complete += 1
        self.start = self._reader.position
        if not self._may_repeat:
            raise Enough

    def broken(self) -> bool:
        """Give up the call that has begun, if one has; return whether one had."""
        if not self._is_open:
            return False
        self._is_open = False
        reader = self._reader
        at_end = reader.is_over and reader.position == len(reader.text)
        raw = reader.text[self.start : reader.position]
        self._give(CallBroken(self._num_begun - 1, raw, at_end))
        return True


Read = Callable[[Reader, Calls], Steps[None]]  # reads the calls after a mark; raises Malformed


def hermes(reader: Reader, calls: Calls) -> Steps[None]:
    """<tool_call>{"name": …, "arguments": {…}}</tool_call>, one call a mark."""
    yield from reader.spaces()
    yield from _call_object(reader, calls)
    yield from reader.take_after_spaces("</tool_call>")


def llama3(reader: Reader, calls: Calls) -> Steps[None]:
    """{"name": …, "parameters": {…}}, several with semicolons between."""
    yield from reader.spaces()
    yield from _call_object(reader, calls)
    while (yield from reader.take_after_spaces(";")):
        yield from reader.spaces()
        yield from _call_object(reader, calls)


def mistral(reader: Reader, calls: Calls) -> Steps[None]:
    """[TOOL_CALLS] and a list of objects, or since 2025 NAME[ARGS]{…}, one call a mark."""
    yield from reader.spaces()
    if (yield from reader.take("[")):
        yield from _rest_of_list(reader, calls)
        return
    if (yield from reader.peek()) == "{":
        yield from _call_object(reader, calls)
        return
    name = yield from reader.name()
    if (yield from reader.take("[CALL_ID]")):
        yield from reader.name()
    yield from reader.take("[ARGS]")
    yield from arguments(reader, calls, name)


def deepseek(reader: Reader, calls: Calls) -> Steps[None]:
    """Calls between marks: since V3.1 NAME, a mark and {…}; before, `function`, a mark, NAME and
    {…} in a fence."""
    begin, separator, end = (f"<｜tool▁{part}｜>" for part in ("call▁begin", "sep", "call▁end"))
    yield from reader.expect(begin)
    while True:
        name = yield from reader.until(separator)
        yield from reader.spaces()
        if (yield from reader.peek()) != "{":
            name = yield from reader.until("\n")
            yield from reader.expect("```json")
        yield from arguments(reader, calls, name.strip())
        yield from reader.take_after_spaces("```")
        yield from reader.take_after_spaces(end)
        if not (yield from reader.take_after_spaces(begin)):
            break
    yield from reader.take_after_spaces("<｜tool▁calls▁end｜>")


def qwen3_coder(reader: Reader, calls: Calls) -> Steps[None]:
    """<function=NAME>, then <parameter=NAME>, a value and </parameter>; one call a mark.

    Texts stand there as they are, other values as JSON: which is which, only the schema can tell.
    """
    yield from reader.expect("<function=")
    name = (yield from reader.until(">")).strip()
    calls.begin(name)
    num_arguments = 0
    while (yield from reader.take_after_spaces("<parameter=")):
        argument = (yield from reader.until(">")).strip()
        calls.add(("{" if num_arguments == 0 else ", ") + _json(argument) + ": ")
        num_arguments += 1
        yield from reader.take("\n")
        if calls.is_text(name, argument):
            calls.add('"')
            yield from reader.text_before(_QWEN_ENDS, lambda piece: calls.add(_json(piece)[1:-1]))
            calls.add('"')
        else:
            calls.add((yield from _qwen_value(reader)))
    yield from reader.expect("</function>")
    calls.add("}" if num_arguments else "{}")
    calls.end()
    yield from reader.take_after_spaces("</tool_call>")


def _qwen_value(reader: Reader) -> Steps[str]:
    """Return the JSON of a value that is JSON, a name of Python's or else text; skip its end."""
    start = reader.position
    try:
        yield from reader.spaces()
        value = yield from reader.json()
        yield from reader.expect(_QWEN_ENDS[-1])
        return value
    except Malformed:
        reader.position = start
    pieces: list[str] = []
    yield from reader.text_before(_QWEN_ENDS, pieces.append)
    text = "".join(pieces)
    return _PYTHON_NAMES.get(text.strip()) or _json(text)


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def plain_json(reader: Reader, calls: Calls) -> Steps[None]:
    """{"name": …, "arguments": {…}}: one, a list, or one after the other; also in a fence."""
    yield from reader.spaces()
    is_fenced = (yield from reader.take("```json")) or (yield from reader.take("```"))
    yield from reader.spaces()
    if (yield from reader.take("[")):
        yield from _rest_of_list(reader, calls)
    else:
        yield from _call_object(reader, calls)
        while (yield from _another(reader)):
            yield from _call_object(reader, calls)
    if is_fenced:
        yield from reader.take_after_spaces("```")


def _another(reader: Reader) -> Steps[bool]:
    start = reader.position
    yield from reader.spaces()
    if (yield from reader.peek()) == "{":
        return True
    reader.position = start
    return False


def _rest_of_list(reader: Reader, calls: Calls) -> Steps[None]:
    """Read calls up to the end of their list."""
    yield from reader.spaces()
    yield from _call_object(reader, calls)
    while (yield from reader.take_after_spaces(",")):
        yield from reader.spaces()
        yield from _call_object(reader, calls)
    yield from reader.expect("]")


def _call_object(reader: Reader, calls: Calls) -> Steps[None]:
    """Read an object with the name of a tool and its arguments, in any order."""
    yield from reader.expect("{")
    name: str | None = None
    arguments: str | None = None
    while True:
        key = yield from _string(reader)
        yield from reader.expect(":")
        yield from reader.spaces()
        if key == "name" and name is None:
            name = yield from _string(reader)
            calls.check(name)
            if arguments is not None:
                calls.begin(name)
                calls.add(arguments)
        elif key in _ARGUMENT_KEYS and arguments is None:
            yield from _expect_object(reader)
            if name is not None:
                calls.begin(name)
            arguments = yield from reader.json(calls.add if name is not None else None)
        elif key in _OTHER_KEYS:
            yield from reader.json()
        else:
            raise Malformed
        if not (yield from reader.take_after_spaces(",")):
            break
        yield from reader.spaces()
    yield from reader.expect("}")
    if name is None:
        raise Malformed
    if arguments is None:
        calls.begin(name)
        calls.add("{}")
    calls.end()


def arguments(reader: Reader, calls: Calls, name: str) -> Steps[None]:
    """Read the arguments of a call whose name was read. Raises Malformed, Enough."""
    yield from reader.spaces()
    yield from _expect_object(reader)
    calls.begin(name)
    yield from reader.json(calls.add)
    calls.end()


def _expect_object(reader: Reader) -> Steps[None]:
    if (yield from reader.peek()) != "{":
        raise Malformed


def _string(reader: Reader) -> Steps[str]:
    yield from reader.spaces()
    if (yield from reader.peek()) != '"':
        raise Malformed
    text: str = json.loads((yield from reader.json()))
    return text
