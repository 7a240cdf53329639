"""docs/reference/cli.md: every command and option, as they are declared to typer."""

import inspect
import re
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from docs.generate.markdown import page, table
from muxcluster.cli.main import COMMANDS, FOLDERS, GROUPS

_INTRODUCTION = """\
# Command line

`muxcluster COMMAND --help` shows the same. Exit codes: 0 done, 1 failed, 2 bad input or a plan that
does not fit, 130 interrupted. Errors are one line on standard error. Commands that print a table
print it as JSON with `--json`. `place`, `simulate`, `init`, `batch plan`, and the clients of a
server (`chat`, `status`, `top`, `trace`, `bench`, `park`, `wake`, `pin`, the other `batch` commands
but `run`) work with the base install; the others need the extra `serve`, and say so."""


def cli_page() -> str:
    """Return the page."""
    commands = [
        (name, f"muxcluster.cli.{FOLDERS.get(name, '')}{name}", name)
        for name in COMMANDS
        if name not in GROUPS
    ]
    commands += [
        (f"{group} {action}", f"muxcluster.cli.{group}.{action}", action)
        for group, actions in GROUPS.items()
        for action in actions
    ]
    overview = table(
        ("command", "does"),
        [(f"[`{name}`](#muxcluster-{_slug(name)})", _summary(name)) for name, _, _ in commands],
    )
    sections = [
        _section(name, getattr(import_module(module), function))
        for name, module, function in commands
    ]
    return page(_INTRODUCTION, overview, *sections)


def _slug(name: str) -> str:
    return name.replace(" ", "-")


def _summary(name: str) -> str:
    group, _, action = name.partition(" ")
    return GROUPS[group][action] if action else COMMANDS[group]


@dataclass(frozen=True, slots=True)
class _Parameter:
    """An argument or option of a command."""

    name: str
    kind: Any  # its type, without None
    info: ArgumentInfo | OptionInfo
    default: Any  # `inspect.Parameter.empty` for none

    @property
    def is_option(self) -> bool:
        return isinstance(self.info, OptionInfo)

    @property
    def is_flag(self) -> bool:
        return self.kind is bool


def _parameters(function: Callable[..., None]) -> Iterator[_Parameter]:
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, *notes = get_args(hints[name]) if hasattr(hints[name], "__metadata__") else (None,)
        infos = [note for note in notes if isinstance(note, ArgumentInfo | OptionInfo)]
        if infos:
            yield _Parameter(name, _without_none(kind), infos[0], parameter.default)


def _without_none(kind: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (each for each in get_args(kind) if each is not type(None))
    return kind


def _section(name: str, function: Callable[..., None]) -> str:
    parameters = list(_parameters(function))
    arguments = [each for each in parameters if not each.is_option]
    options = [each for each in parameters if each.is_option]
    usage = " ".join(["muxcluster", name, "[OPTIONS]", *map(_usage, arguments)])
    text = inspect.cleandoc(function.__doc__ or "")
    description, *examples = re.split(r"^Examples?:", text, flags=re.MULTILINE)
    parts = [f"## `muxcluster {name}`", _plain(description), f"```text\n{usage}\n```"]
    for example in examples:
        lines = "\n".join(line.strip() for line in example.strip().splitlines())
        parts.append(f"For example:\n\n```text\n{lines}\n```")
    rows = [(f"`{_usage(each)}`", _plain(each.info.help or "")) for each in arguments]
    if rows:
        parts.append(table(("argument", "meaning"), rows))
    if options:
        parts.append(table(("option", "default", "meaning"), map(_option_row, options)))
    return "\n\n".join(parts)


def _usage(argument: _Parameter) -> str:
    name = argument.info.metavar or argument.name.upper()
    name += "..." if get_origin(argument.kind) is list else ""
    return name if argument.default is inspect.Parameter.empty else f"[{name}]"


def _option_row(option: _Parameter) -> tuple[str, str, str]:
    names = ", ".join(f"`{name}`" for name in _declared(option))
    return f"{names} {_value(option)}".strip(), _default(option), _plain(option.info.help or "")


def _declared(option: _Parameter) -> tuple[str, ...]:
    """Return the option's names: in `Annotated`, typer keeps the first one as the default."""
    first = (option.info.default,) if isinstance(option.info.default, str) else ()
    return (*first, *(option.info.param_decls or ())) or (f"--{option.name.replace('_', '-')}",)


def _value(option: _Parameter) -> str:
    """Return what an option takes, in words."""
    if option.is_flag:
        return ""
    kind = get_args(option.kind)[0] if get_origin(option.kind) is list else option.kind
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{each.value}`" for each in kind)
    words = {int: "integer", float: "number", str: "text", Path: "file"}
    return f"*{(option.info.metavar or words[kind]).lower()}*"


def _default(option: _Parameter) -> str:
    if isinstance(option.info.show_default, str):
        return option.info.show_default
    if option.default is inspect.Parameter.empty:
        return "required"
    if option.is_flag or option.default is None:
        return ""
    return f"`{getattr(option.default, 'value', option.default)}`"


def _plain(text: str) -> str:
    """Return one line in which only code is marked up."""
    return "".join(_escaped(" ".join(text.split())))


def _escaped(text: str) -> Iterator[str]:
    """Yield the text with what Markdown would take for a tag, a link or emphasis escaped, outside
    of code."""
    for index, part in enumerate(text.split("`")):
        if index % 2:
            yield f"`{part}`"
        else:
            yield part.replace("<", "&lt;").replace("[", "\\[").replace("*", "\\*")
