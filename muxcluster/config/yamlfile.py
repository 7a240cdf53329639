"""YAML text to plain values, with the line each key stands on."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from muxcluster.core.errors import ConfigError

Location = tuple[str | int, ...]


def read_yaml(path: Path) -> tuple[Any, Mapping[Location, int]]:
    """(content, key path -> line counted from 1). Raises ConfigError; a key twice is refused."""
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except FileNotFoundError as error:
        raise ConfigError(path, "", "no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(path, "", f"not readable: {error}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise _syntax_error(path, error) from error
    lines: dict[Location, int] = {}
    for location, line in _walk(node, ()):
        if location in lines:
            raise ConfigError(path, key_text(location), "the key is there twice", line)
        lines[location] = line
    return content, lines


def key_text(location: Location) -> str:
    """("models", 0, "rate") as models[0].rate."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _walk(node: yaml.Node | None, at: Location) -> Iterator[tuple[Location, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = (*at, str(key.value))
            yield place, key.start_mark.line + 1
            yield from _walk(value, place)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*at, index), value.start_mark.line + 1
            yield from _walk(value, (*at, index))


def _syntax_error(path: Path, error: Exception) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return ConfigError(path, "", f"not YAML: {problem}", mark.line + 1 if mark else None)
