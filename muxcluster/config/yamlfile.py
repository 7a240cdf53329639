"""YAML text to plain values, with the line of each key.

Files are limited in bytes, depth and number of values, with aliases counted as often as they are
used, so that a hostile file fails at once. Numbers are read as in YAML 1.2 and JSON: `1e9` is a
number.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from muxcluster.core.errors import ConfigError

Location = tuple[str | int, ...]

MOST_BYTES = 2 * 2**20  # enough for ten thousand models
MOST_DEPTH = 32
# Keys count as values; an alias counts as its whole content each time.
MOST_VALUES = 100_000

_MOST_DIGITS = 400
_EXPONENT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")
_MOST_EXACT = 2**53
_KEY = re.compile(r"[\w./-]{1,80}")
# Errors of PyYAML's constructors for values that do not match their tag.
_WRONG_VALUES = (ValueError, LookupError, TypeError, AttributeError, OverflowError)


class _Loader(yaml.SafeLoader):
    """A SafeLoader that raises ComposerError if a document passes a limit."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._num_values = 0
        self._sizes: dict[str, int] = {}
        """By anchor that is complete: the values below it."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        anchor, before = event.anchor, self._num_values
        is_alias = self.check_event(yaml.AliasEvent)
        if is_alias and anchor in self.anchors and anchor not in self._sizes:
            self._fail(f"*{anchor} stands for something that it is itself in", event)
        self._num_values += self._sizes.get(anchor, 0) if is_alias else 1
        self._depth += 1
        if self._depth > MOST_DEPTH:
            self._fail(f"nested more than {MOST_DEPTH} deep", event)
        if self._num_values > MOST_VALUES:
            self._fail(f"more than {MOST_VALUES:,} values", event)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        if anchor is not None and not is_alias:
            self._sizes[anchor] = self._num_values - before
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        # thousands of digits, or of the parts of YAML 1.1's 1:30:00, take seconds
        if len(node.value) > _MOST_DIGITS:
            problem = f"a number of {len(node.value)} digits"
            raise ConstructorError(None, None, problem, node.start_mark)
        return int(super().construct_yaml_int(node))

    def construct_yaml_float(self, node: yaml.ScalarNode) -> int | float:
        value = float(super().construct_yaml_float(node))
        is_exact = value.is_integer() and abs(value) <= _MOST_EXACT
        # 1e9 is an integer for integer keys; keys for any number accept both
        return int(value) if is_exact and "e" in node.value.lower() else value

    def _fail(self, problem: str, event: Any) -> None:
        raise ComposerError(None, None, problem, event.start_mark)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def read_yaml(path: Path) -> tuple[Any, Mapping[Location, int]]:
    """Return (content, key path -> line, counted from 1). Raises ConfigError, also for a duplicate
    key."""
    text = _text(path)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        lines = _lines(path, node)  # before the merges of `<<`, which add keys to the nodes
        content = None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, *_WRONG_VALUES) as error:
        raise _syntax_error(path, error) from error
    return content, lines


def _lines(path: Path, node: yaml.Node | None) -> Mapping[Location, int]:
    lines: dict[Location, int] = {}
    for location, line in _walk(node, ()):
        if location in lines:
            raise ConfigError(path, key_text(location), "the key is there twice", line)
        lines[location] = line
    return lines


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ConfigError(path, "", f"not readable: larger than {MOST_BYTES:,} bytes")
        return data.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(path, "", "no such file") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(path, "", f"not readable: {reason}") from error


def key_text(location: Location) -> str:
    """Return ("models", 0, "rate") as models[0].rate; a name that is not a plain word is quoted."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            word = part if _KEY.fullmatch(part) else f"{part!r:.80}"
            text += f".{word}" if text else word
    return text


def _walk(node: yaml.Node | None, at: Location) -> Iterator[tuple[Location, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            # lists and objects as keys are refused when the values are made
            place = (*at, key.value if isinstance(key, yaml.ScalarNode) else "?")
            yield place, key.start_mark.line + 1
            yield from _walk(value, place)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*at, index), value.start_mark.line + 1
            yield from _walk(value, (*at, index))


def _syntax_error(path: Path, error: Exception) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or (str(error).splitlines() or [repr(error)])[0]
    return ConfigError(path, "", f"not YAML: {problem}", mark.line + 1 if mark else None)
