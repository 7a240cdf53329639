"""What is prose in a page, and the figures in it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from docs.generate.blocks import BLOCK
from docs.generate.template import FIELD

_UNITS = (
    "×|x|%|µs|us|ms|s|seconds?|minutes?|hours?|days?|[KMGT]i?B|tokens/s|requests/s|req/s|rps|times"
)
FIGURE = re.compile(rf"(?<![\w.-])\d[\d.,]*(?:\s?[–-]\s?\d[\d.,]*)?\s?(?:{_UNITS})(?![\w/])")
_CODE = (
    re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"`[^`\n]*`"),
    re.compile(r"\]\([^)]*\)"),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with a unit, and its line."""

    text: str
    line: str


def figures(page: str) -> Iterator[Figure]:
    """Yield the figures that are typed in a page's prose: outside of code, links, generated blocks
    and fields of templates."""
    text = BLOCK.sub("", page)
    text = FIELD.sub("", text)
    for pattern in _CODE:
        text = pattern.sub(lambda match: "\n" * match[0].count("\n"), text)
    for line in text.splitlines():
        for match in FIGURE.finditer(line):
            yield Figure(" ".join(match[0].split()), line.strip())
