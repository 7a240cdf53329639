"""Makes the grammar of a constraint from what a client asks for.

A grammar is one string, a JSON object with one key:
- "grammars": what llguidance calls a serialised grammar, of a JSON schema or of Lark rules;
- "gbnf": rules in llama.cpp's notation, which the mask process translates;
- "structural_tag": what a client wrote, which the mask process makes rules of;
- "tagged": text with JSON in tags (`tagged`), which the mask process completes with the ids of the
  model's special tokens;
- "messages": several messages in one output (`messages`), completed likewise.
Nothing is compiled here: the mask process does that, under limits.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muxcluster.constraints.schema import check_schema, without_harmless
from muxcluster.core.errors import InvalidValue

# A request's grammar as text. Twice the size of the largest schemas seen in public collections of
# function definitions; compiling one of 1 MB takes seconds.
MOST_BYTES = 256 * 1024
# At each place where JSON allows whitespace. A model that is unsure can write whitespace until its
# tokens are used up; this is enough for 15 levels of four spaces.
WHITESPACE = r"[\x20\x0A\x0D\x09]{1,64}"
JSON_OPTIONS = {"whitespace_pattern": WHITESPACE}

# Within a line: with "\s" the time would grow with the square of the number of empty lines.
_LARK_START = re.compile(r"^[ \t]*\??start\b[^:\n]*:(?!:)", re.MULTILINE)
_GBNF_RULE = re.compile(r"^[ \t]*[A-Za-z0-9_-]+[ \t]*::=", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Tag:
    """Text around a JSON value, such as a tool call.

    begin, end: literal text, which may hold special tokens of the model by their text. schema: of
    the value; None or True: any JSON value. field: the texts around each property of the value, an
    object, which is then not written as JSON; the first has `{name}` for the property's name.
    """

    begin: str
    schema: Mapping[str, Any] | bool | None
    end: str
    field: tuple[str, str] | None = None


def json_object() -> str:
    """Return the grammar of any JSON object."""
    return _of_schema({"type": "object"})


def json_schema(schema: Mapping[str, Any] | bool, param: str) -> str:
    """Return the grammar of the JSON texts that are valid against `schema`.

    Raises InvalidValue, with the path inside the schema, for one that is not a JSON schema or
    cannot be honoured.
    """
    check_schema(schema, param)
    return bounded(_of_schema(schema), param)


def regex(pattern: str, param: str) -> str:
    """Return the grammar of the texts that match the whole of a regular expression.

    The syntax is that of Rust's `regex` without lookaround, word boundaries and back references;
    "^" and "$" may stand only where they hold anyway. A digit, `\\d`, is one of 0 to 9. Raises
    InvalidValue.
    """
    if not isinstance(pattern, str) or not pattern:
        raise InvalidValue(f"{param} must be a regular expression that is not empty", param)
    _check_length(len(pattern), param)
    return bounded(_of_lark(f"start: TEXT\nTEXT: /{_escaped(pattern)}/\n"), param)


def choice(options: Sequence[str], param: str) -> str:
    """Return the grammar of the texts in `options`. Raises InvalidValue."""
    if not isinstance(options, Sequence) or isinstance(options, str) or not options:
        raise InvalidValue(f"{param} must be a list of at least one text", param)
    _check_length(len(options), param)
    for number, option in enumerate(options):
        if not isinstance(option, str) or not option:
            raise InvalidValue(f"{param}[{number}] must be a text that is not empty", param)
    _check_length(sum(map(len, options)), param)
    texts = " | ".join(quoted(option) for option in dict.fromkeys(options))
    return bounded(_of_lark(f"start: TEXT\nTEXT: {texts}\n"), param)


def lark(text: str, param: str) -> str:
    """Return the grammar of Lark rules (llguidance's dialect) or of GBNF rules.

    Lark has a rule "start: ...", GBNF a rule "root ::= ...". Raises InvalidValue.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidValue(f"{param} must be a grammar that is not empty", param)
    _check_length(len(text), param)
    if _LARK_START.search(text):
        return bounded(_of_lark(text), param)
    if _GBNF_RULE.search(text):
        return bounded(json.dumps({"gbnf": text}), param)
    raise InvalidValue(
        f"{param} has neither a rule `start: ...` (Lark) nor rules `root ::= ...` (GBNF)", param
    )


def tagged(  # noqa: PLR0913 - the parts that tool formats differ in
    tags: Sequence[Tag],
    *,
    needs_one: bool,
    may_repeat: bool,
    text_before: bool,
    separator: str = "",
    prefix: str = "",
    suffix: str = "",
    trigger: str = "",
) -> str:
    """Return the grammar of text with tags, as for tool calls.

    The tags stand in a block: `prefix`, a tag, more tags after `separator` if `may_repeat`,
    `suffix`. Without `text_before` the block is all there is, and it may be absent unless
    `needs_one`. With it free text stands before and after the block, and between several blocks if
    `may_repeat` and there is no prefix.

    trigger: in free text, what always begins a block: a start that all blocks have in common,
    otherwise the longest. Free text never contains it. The schemas of the tags must have been
    checked by `check_schema`. Raises ValueError for tags that contradict this.
    """
    if not tags:
        raise ValueError("at least one tag is needed")
    if text_before:
        starts = [prefix + tag.begin for tag in tags]
        trigger = trigger or common_start(starts)
        if not trigger or not all(start.startswith(trigger) for start in starts):
            raise ValueError(f"not every tag begins with the trigger {trigger!r}")
    value = {
        "tags": [
            [tag.begin, True if tag.schema is None else tag.schema, tag.end, tag.field]
            for tag in tags
        ],
        "needs_one": needs_one,
        "may_repeat": may_repeat,
        "text_before": text_before,
        "separator": separator,
        "prefix": prefix,
        "suffix": suffix,
        "trigger": trigger if text_before else "",
    }
    return json.dumps({"tagged": value})


def messages(
    last: Sequence[tuple[Sequence[str], Mapping[str, Any] | bool | None]],
    *,
    earlier: Sequence[str],
    between: str,
    begins_within: bool,
) -> str:
    """Return the grammar of an output that is a row of messages.

    Each has a header. earlier: headers of messages with free text, of which any number may come
    first, each ended by `between`. last: headers of the last message, one of which it has, and its
    schema; None: free text. begins_within: the output begins in the text of an earlier message.
    Texts that are special tokens of the model stand for these.
    """
    value = {
        "last": [[list(headers), schema] for headers, schema in last],
        "earlier": list(earlier),
        "between": between,
        "begins_within": begins_within,
    }
    return json.dumps({"messages": value})


def is_text(schema: object) -> bool:
    """Return True if a schema says of itself that all of its values are texts."""
    if not isinstance(schema, Mapping):
        return False
    if "type" in schema:
        return bool(schema["type"] == "string")
    options = text_options(schema)
    return options is not None and all(isinstance(option, str) for option in options)


def text_options(schema: Mapping[str, Any]) -> Sequence[Any] | None:
    """Return the only values that a schema lists; None if it lists none."""
    options: Sequence[Any] | None = [schema["const"]] if "const" in schema else schema.get("enum")
    return options


def common_start(texts: Sequence[str]) -> str:
    """Return the longest text that all of `texts` begin with."""
    first, last = min(texts), max(texts)
    length = 0
    while length < min(len(first), len(last)) and first[length] == last[length]:
        length += 1
    return first[:length]


def quoted(text: str) -> str:
    """Return `text` as a string literal of Lark, which takes JSON's without U+007F."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")


def with_json_options(schema: Any) -> dict[str, Any]:
    """Return the schema with what llguidance is to know about our JSON."""
    if schema is True:
        schema = {}
    return {**without_harmless(schema), "x-guidance": JSON_OPTIONS}


def _of_schema(schema: Any) -> str:
    return json.dumps({"grammars": [{"json_schema": with_json_options(schema)}]})


def _of_lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def bounded(grammar: str, param: str) -> str:
    """Return the grammar. Raises InvalidValue if it is too long."""
    _check_length(len(grammar), param)
    return grammar


def _check_length(num_bytes: int, param: str) -> None:
    """Raise InvalidValue for a grammar that is too long, before time is spent on it."""
    if num_bytes > MOST_BYTES:
        raise InvalidValue(
            f"{param} is a grammar of {num_bytes:,} bytes; at most {MOST_BYTES:,} are taken", param
        )


def _escaped(pattern: str) -> str:
    """Return the pattern as it stands between slashes in Lark rules, which end at a line's end."""
    escapes = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "/": "\\/"}
    # Not the digits of all scripts: who writes \d wants a number that machines read.
    classes = {"d": "[0-9]", "D": "[^0-9]"}
    found, is_escaped = [], False
    for char in pattern:
        if is_escaped:
            found.append(classes.get(char) or escapes.get(char) or "\\" + char)
            is_escaped = False
        elif char == "\\":
            is_escaped = True
        else:
            found.append(escapes.get(char, char))
    return "".join(found) + ("\\" if is_escaped else "")
