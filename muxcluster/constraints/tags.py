"""Writes the Lark rules of text with tags, for one model's special tokens."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from muxcluster.constraints.grammars import quoted, with_json_options


def tagged_rules(value: Mapping[str, Any], specials: Mapping[str, int]) -> str:
    """Return Lark rules for what `grammars.tagged` wrote.

    specials: ids of the model's special tokens by their text, which stand for that text.
    """
    write = Literals(specials)
    begins, schemas, ends = zip(*value["tags"], strict=True)
    inside = [
        f"inside{at}: %json {json.dumps(with_json_options(schema))}"
        for at, schema in enumerate(schemas)
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
