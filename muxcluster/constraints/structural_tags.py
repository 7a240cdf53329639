"""Makes Lark rules of a structural tag: free text, and parts of a set form within it.

Takes both forms that vLLM and SGLang do: `{"format": {...}}`, which xgrammar's documentation
describes, and the older `{"structures": [...], "triggers": [...]}`. It is done twice: when a
request is checked, and in the mask process, which knows the model's special tokens.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muxcluster.constraints.grammars import bounded, quoted, with_json_options
from muxcluster.constraints.schema import MOST_DEPTH, check_schema, check_size
from muxcluster.constraints.tags import Literals
from muxcluster.core.errors import InvalidValue, MissingParameter, UnsupportedParameter
from muxcluster.core.inputs.clip import clip, plain

# Of formats in one another, and of formats and tags in all: tool calls need three, and one a tool
MAX_DEPTH = 16
MAX_FORMATS = 1024
_EMPTY = '""'
_ESCAPED = {"/": r"\/", "\n": r"\n"}


def structural_tag(value: Mapping[str, Any], param: str) -> str:
    """Return the grammar of a structural tag.

    Raises InvalidValue, MissingParameter or UnsupportedParameter; their `param` has the path.
    """
    if value.get("type", "structural_tag") != "structural_tag":
        raise InvalidValue(f"{param}.type must be structural_tag", f"{param}.type")
    inside = {name: each for name, each in value.items() if name != "type"}
    check_size(inside, param, MOST_DEPTH + 2 * MAX_DEPTH)
    _rules(_Node(inside, param, check_schema), {})
    return bounded(json.dumps({"structural_tag": inside}), param)


def structural_rules(value: Mapping[str, Any], specials: Mapping[str, int]) -> str:
    """Return the Lark rules of what `structural_tag` has checked.

    specials: ids of the model's special tokens by their text, which stand for that text.
    """
    return _rules(_Node(value, "", lambda schema, param: None), specials)


def _rules(root: "_Node", specials: Mapping[str, int]) -> str:
    names = set(root.value)
    compiler = _Compiler(Literals(specials))
    if names == {"format"}:
        return compiler.rules(compiler.expression(root.node("format"), is_last=True))
    if names == {"structures", "triggers"}:
        return compiler.rules(compiler.older_form(root))
    message = f"{root.param} needs either format, or structures and triggers"
    raise InvalidValue(message, root.param)


@dataclass(frozen=True, slots=True)
class _Node:
    """An object inside of a structural tag.

    Its methods raise MissingParameter and InvalidValue for what is absent or of another type.
    """

    value: Mapping[str, Any]
    param: str  # its path
    check: Callable[[Any, str], None]  # of a schema and its path
    depth: int = 0

    def text(self, name: str) -> str:
        """Return a string."""
        return _as_text(self.field(name), f"{self.param}.{name}")

    def texts(self, name: str) -> list[str]:
        """Return a list of strings that is not empty."""
        return [_as_text(item, path) for item, path in self._items(name)]

    def flag(self, name: str) -> bool:
        """Return a boolean; an absent one is False."""
        value, path = self.value.get(name), f"{self.param}.{name}"
        if not isinstance(value, bool | None):
            raise InvalidValue(f"{path} must be true or false", path)
        return bool(value)

    def node(self, name: str) -> "_Node":
        """Return an object."""
        return self._inner(self.field(name), f"{self.param}.{name}")

    def nodes(self, name: str) -> "list[_Node]":
        """Return a list of objects that is not empty."""
        return [self._inner(item, path) for item, path in self._items(name)]

    def schema(self, name: str) -> Mapping[str, Any] | bool:
        """Return a JSON schema, checked."""
        value, path = self.field(name), f"{self.param}.{name}"
        if not isinstance(value, Mapping | bool):
            raise InvalidValue(f"{path} must be a JSON schema", path)
        self.check(value, path)
        return value

    def check_fields(self, *names: str) -> None:
        """Raise UnsupportedParameter for a field beside `type` and `names` that has a value."""
        for name, value in self.value.items():
            if name not in ("type", *names) and value not in (None, []):
                param = f"{self.param}.{plain(name)}"
                raise UnsupportedParameter(f"{param} is not supported by this server", param)

    def field(self, name: str) -> Any:
        """Return any value but null."""
        value = self.value.get(name)
        if value is None:
            param = f"{self.param}.{name}"
            raise MissingParameter(f"missing required field {param}", param)
        return value

    def _items(self, name: str) -> Iterator[tuple[Any, str]]:
        value, path = self.field(name), f"{self.param}.{name}"
        if not isinstance(value, list) or not value:
            raise InvalidValue(f"{path} must be a list that is not empty", path)
        return ((item, f"{path}[{i}]") for i, item in enumerate(value))

    def _inner(self, value: object, path: str) -> "_Node":
        if not isinstance(value, Mapping):
            raise InvalidValue(f"{path} must be an object", path)
        if self.depth == MAX_DEPTH:
            raise InvalidValue(f"{path}: formats are more than {MAX_DEPTH} deep", path)
        return _Node(value, path, self.check, self.depth + 1)


def _as_text(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise InvalidValue(f"{param} must be a string", param)
    return value


@dataclass(frozen=True, slots=True)
class _Tag:
    """A tag: its beginning as text, as a trigger takes part of that, the rest as expression."""

    param: str
    begin: str
    rest: str


class _Compiler:
    """Collects rules; an expression is what may stand on the right side of one.

    Free text takes whatever comes, but no special token. What follows it must end it: a special
    token, or a text up to which a rule marked `[lazy]` matches. Otherwise it must be last.
    """

    def __init__(self, literal: Literals) -> None:
        self._literal = literal
        self._names: dict[str, str] = {}  # of rules, by what they say
        self._num_formats = 0

    def rules(self, start: str) -> str:
        """Return all rules."""
        written = [f"{name}{body}" for body, name in self._names.items()]
        return "\n".join((f"start: {start or _EMPTY}", "FREE: /(?s:.*)/", *written, ""))

    def expression(self, node: _Node, *, is_last: bool) -> str:
        """Return the expression of a format. is_last: nothing follows it in the output."""
        self._count(node)
        match node.text("type"):
            case "const_string":
                node.check_fields("value")
                return self._literal(node.text("value"))
            case "json_schema":
                is_json = node.value.get("style") == "json"
                node.check_fields("json_schema", *(["style"] if is_json else []))
                return self._json(node, "json_schema")
            case "regex":
                node.check_fields("pattern")
                return _regex(node.text("pattern"), f"{node.param}.pattern")
            case "any_text":
                node.check_fields()
                return _free_text(node, is_last=is_last)
            case "sequence" | "or" as kind:
                node.check_fields("elements")
                return self._elements(node.nodes("elements"), kind, is_last=is_last)
            case "tag":
                tag = self._tag(node, is_last=is_last)
                return _sequence(self._literal(tag.begin), tag.rest)
            case "triggered_tags":
                node.check_fields("triggers", "tags", "at_least_one", "stop_after_first")
                tags = [self._tag(each) for each in node.nodes("tags")]
                return self._triggered(node, tags, is_last=is_last)
            case "tags_with_separator":
                node.check_fields("tags", "separator", "at_least_one", "stop_after_first")
                return self._separated(node)
            case kind:
                param = f"{node.param}.type"
                raise UnsupportedParameter(f"{param}: {clip(kind)} is not supported", param)

    def older_form(self, root: _Node) -> str:
        """Return the expression of `structures` with `triggers`."""
        tags = []
        for node in root.nodes("structures"):
            self._count(node)
            node.check_fields("begin", "schema", "end")
            rest = _sequence(self._json(node, "schema"), self._literal(node.text("end")))
            tags.append(_Tag(node.param, node.text("begin"), rest))
        return self._triggered(root, tags, is_last=True)

    def _elements(self, nodes: Sequence[_Node], kind: str, *, is_last: bool) -> str:
        if kind == "or":
            return _either([self.expression(each, is_last=is_last) for each in nodes])
        lasts = [False] * (len(nodes) - 1) + [is_last]
        return _sequence(
            *(self.expression(node, is_last=last) for node, last in zip(nodes, lasts, strict=True))
        )

    def _tag(self, node: _Node, *, is_last: bool = False) -> _Tag:
        self._count(node)
        node.check_fields("begin", "content", "end")
        ends = node.texts("end") if isinstance(node.field("end"), list) else [node.text("end")]
        begin, content = node.text("begin"), node.node("content")
        if content.value.get("type") == "any_text" and all(ends):
            content.check_fields()
            return _Tag(node.param, begin, _either([self._free_up_to(end) for end in ends]))
        inside = self.expression(content, is_last=is_last and not any(ends))
        return _Tag(node.param, begin, _sequence(inside, _either(list(map(self._literal, ends)))))

    def _triggered(self, node: _Node, tags: Sequence[_Tag], *, is_last: bool) -> str:
        """Return the expression of tags in free text, each of which begins with a trigger."""
        triggers = list(dict.fromkeys(filter(None, node.texts("triggers"))))
        led = _either([self._led(tag, triggers) for tag in tags])
        first = _either([_sequence(self._literal(tag.begin), tag.rest) for tag in tags])
        match node.flag("at_least_one"), node.flag("stop_after_first"):
            case True, True:
                return first
            case False, True:
                return _either([led, _free_text(node, is_last=is_last)])
            case begins_with_one, _:
                rest = _sequence(f"({led})*", _free_text(node, is_last=is_last))
                return _sequence(first, rest) if begins_with_one else rest

    def _led(self, tag: _Tag, triggers: Sequence[str]) -> str:
        """Return the expression of free text with a tag after it."""
        own = [trigger for trigger in triggers if tag.begin.startswith(trigger)]
        if len(own) != 1:
            param = f"{tag.param}.begin"
            raise InvalidValue(f"{param} must begin with exactly one of the triggers", param)
        (trigger,) = own
        if self._literal.first_special(trigger) == 0:
            return _sequence("FREE", self._literal(tag.begin), tag.rest)
        head = self._rule(f"/(?s:.*)/ {quoted(trigger)}", "[lazy]")
        return _sequence(head, self._literal(tag.begin[len(trigger) :]), tag.rest)

    def _free_up_to(self, end: str) -> str:
        """Return the expression of free text with `end` after it, which is not in that text."""
        at = self._literal.first_special(end)
        if at is None:
            return self._rule(f"/(?s:.*)/ {quoted(end)}", "[lazy]")
        before = self._terminal(f"/(?s:.*)/ {quoted(end[:at])}") if at else "FREE"
        return _sequence(before, self._literal(end[at:]))

    def _separated(self, node: _Node) -> str:
        """Return the expression of tags with a separator between, and no other text."""
        found = [self._tag(each) for each in node.nodes("tags")]
        options = _either([_sequence(self._literal(tag.begin), tag.rest) for tag in found])
        tag, separator = self._rule(options), self._literal(node.text("separator"))
        is_single = node.flag("stop_after_first")
        tags = tag if is_single else _sequence(tag, f"({_sequence(separator, tag)})*")
        return f"({tags})" if node.flag("at_least_one") else f"({tags})?"

    def _json(self, node: _Node, name: str) -> str:
        return self._rule(f"%json {json.dumps(with_json_options(node.schema(name)))}")

    def _rule(self, body: str, options: str = "") -> str:
        """Add a rule, unless there is one like it; return its name."""
        return self._names.setdefault(f"{options}: {body}", f"part{len(self._names)}")

    def _terminal(self, body: str) -> str:
        """As `_rule`, of what is matched as one regular expression."""
        return self._names.setdefault(f": {body}", f"TEXT{len(self._names)}")

    def _count(self, node: _Node) -> None:
        self._num_formats += 1
        if self._num_formats > MAX_FORMATS:
            raise InvalidValue(f"{node.param}: more than {MAX_FORMATS} formats", node.param)


def _free_text(node: _Node, *, is_last: bool) -> str:
    if not is_last:
        raise InvalidValue(
            f"{node.param}: free text must be all of a tag's content, or last in the output",
            node.param,
        )
    return "FREE"


def _sequence(*parts: str) -> str:
    return " ".join(filter(None, parts))


def _either(options: Sequence[str]) -> str:
    """Return one of `options`; an empty one is the empty text."""
    if len(options) == 1:
        return options[0]
    return f"({' | '.join(option or _EMPTY for option in options)})"


def _regex(pattern: str, param: str) -> str:
    """Return the pattern between slashes. Raises InvalidValue for a lone backslash at the end."""
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise InvalidValue(f"{param} ends with a lone backslash", param)
    # a backslash and the character after it stay as they are
    escaped = re.sub(r"(?s)\\.|[/\n]", lambda found: _ESCAPED.get(found[0], found[0]), pattern)
    return f"/{escaped}/" if escaped else ""
