"""Writes the Lark rules of text with tags, for one model's special tokens."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from muxcluster.constraints.grammars import is_text, quoted, text_options, with_json_options


def tagged_rules(value: Mapping[str, Any], specials: Mapping[str, int]) -> str:
    """Return Lark rules for what `grammars.tagged` wrote.

    specials: ids of the model's special tokens by their text, which stand for that text.
    """
    write = Literals(specials)
    begins, schemas, ends, fields = zip(*value["tags"], strict=True)
    inside = [
        rule
        for at, (schema, field) in enumerate(zip(schemas, fields, strict=True))
        for rule in _inside(f"inside{at}", schema, field, write)
    ]
    prefix, suffix = write(value["prefix"]), write(value["suffix"])
    more = f"({write(value['separator'])} tag)*" if value["may_repeat"] else ""
    if not value["text_before"]:
        rules = [
            f"start: block{'' if value['needs_one'] else '?'}",
            f"block: {prefix} tag {more} {suffix}",
            *_alternatives("tag", begins, ends, write),
        ]
        return "\n".join((*rules, *inside, ""))
    # One block with a prefix, or blocks of one tag each.
    starts = [value["prefix"] + begin for begin in begins]
    trigger, text = _free_text(value, starts, write)
    rests = [start[len(trigger) :] for start in starts]
    rules = [*text, *_alternatives("first", rests, ends, write)]
    if value["prefix"]:
        rules.append(f"block: first {more} {suffix}")
        rules += _alternatives("tag", begins, ends, write) if more else []
    else:
        rules.append(f"block: first {suffix}")
    return "\n".join((*rules, *inside, ""))


def _free_text(
    value: Mapping[str, Any], starts: Sequence[str], write: "Literals"
) -> tuple[str, list[str]]:
    """Return the rules of free text with blocks, and what of a block's start belongs to the text.

    Free text holds no special token, so nothing of a block that begins with one does. Otherwise
    the text ends, as a lazy lexeme, with the trigger where that first occurs.
    """
    is_many = value["may_repeat"] and not value["prefix"]
    count = ("+" if is_many else "") if value["needs_one"] else ("*" if is_many else "?")
    if all(map(write.begins_special, starts)):
        return "", [f"start: (FREE block){count} FREE", "FREE: /(?s:.*)/"]
    trigger = value["trigger"]
    return trigger, [
        f"start: (before block){count} AFTER",
        f"before[lazy]: /(?s:.*)/ {quoted(trigger)}",
        f"AFTER: /(?s:.*)/ & ~(/(?s:.*)/ {quoted(trigger)} /(?s:.*)/)",
    ]


def _alternatives(
    name: str, begins: Sequence[str], ends: Sequence[str], write: "Literals"
) -> list[str]:
    """Return a rule for any of the tags, and a rule for each."""
    each = [
        f"{name}{at}: {write(begin)} inside{at} {write(end)}"
        for at, (begin, end) in enumerate(zip(begins, ends, strict=True))
    ]
    return [f"{name}: {' | '.join(f'{name}{at}' for at in range(len(each)))}", *each]


def _inside(name: str, schema: Any, field: tuple[str, str] | None, write: "Literals") -> list[str]:
    """Return the rules of a tag's value."""
    if field is None:
        return [json_rule(name, schema)]
    begin, end = field
    before, after = begin.split("{name}")
    if "properties" not in schema and schema.get("additionalProperties", True) is not False:
        any_begin = f"{write(before)} /[^>\\n]{{1,64}}/ {write(after)}"
        rules = [f"{name}: {name}_any*", f"{name}_any: {any_begin} {name}_text"]
        return [*rules, *_text_rules(f"{name}_text", end, write)]
    required = schema.get("required", ())
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    order: list[str] = []
    rules = []
    for at, (key, each) in enumerate(schema.get("properties", {}).items()):
        order.append(f"{name}_{at}" + ("" if key in required else "?"))
        rules.append(f"{name}_{at}: {write(before + key + after)} {name}_{at}_value")
        rules += _field_rules(f"{name}_{at}_value", each, shared, end, write)
    return [f"{name}: {' '.join(order) or quoted('')}", *rules]


def _field_rules(
    name: str, schema: Any, shared: Mapping[str, Any], end: str, write: "Literals"
) -> list[str]:
    """Return the rules of a property's value with its end: texts as they are, others as JSON."""
    if not is_text(schema):
        whole = {**schema, **shared} if isinstance(schema, Mapping) else schema
        return [f"{name}: {name}_json {write(end)}", json_rule(f"{name}_json", whole)]
    options = text_options(schema)
    if options is None:
        return _text_rules(name, end, write)
    texts = " | ".join(write(option) or quoted("") for option in options)
    return [f"{name}: ({texts}) {write(end)}"]


def _text_rules(name: str, end: str, write: "Literals") -> list[str]:
    """Return the rules of any text and its end, which is not in the text."""
    if write.first_special(end) is None:
        return [f"{name}[lazy]: /(?s:.*)/ {quoted(end)}"]
    return [f"{name}: {name}_free {write(end)}", f"{name}_free: /(?s:.*)/"]


def json_rule(name: str, schema: Any) -> str:
    """Return the rule of a JSON value that matches `schema`."""
    return f"{name}: %json {json.dumps(with_json_options(schema))}"


class Literals:
    """Writes literal text as a sequence of Lark strings and special tokens."""

    def __init__(self, specials: Mapping[str, int]) -> None:
        self._specials = specials
        texts = sorted((text for text in specials if text), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts)) or r"(?!)")

    def __call__(self, text: str) -> str:
        parts, end = [], 0
        for match in self._pattern.finditer(text):
            parts += self._plain(text[end : match.start()])
            parts.append(f"<[{self._specials[match.group()]}]>")
            end = match.end()
        return " ".join((*parts, *self._plain(text[end:])))

    def begins_special(self, text: str) -> bool:
        """True if the text begins with a special token."""
        return self.first_special(text) == 0

    def first_special(self, text: str) -> int | None:
        """Return where the first special token in the text begins; None if it has none."""
        found = self._pattern.search(text)
        return None if found is None else found.start()

    @staticmethod
    def _plain(text: str) -> list[str]:
        return [quoted(text)] if text else []
