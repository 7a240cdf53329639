"""docs/reference/python.md: the public names of `muxcluster`, from docstrings and field notes."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import muxcluster
from docs.generate.markdown import first_line, page, table
from muxcluster.core.errors import MuxClusterError
from muxcluster.placement.plan import PlannedExecution, PlannedModel, PlannedUnit, PlannedWorker
from muxcluster.sim.report.report import FairnessReport, GroupReport, SpreadReport, UseReport

_INTRODUCTION = """\
# Python

What `import muxcluster` offers. Each name is imported when it is first used: planning and
simulating need neither torch nor Ray; `Unit` needs the extra `serve`, and starts no Ray. Values are
frozen. Tests run every example of this page, and the whole programs:
[plan_a_cluster.py](../../examples/plan_a_cluster.py),
[simulate_a_trace.py](../../examples/simulate_a_trace.py),
[serve_in_process.py](../../examples/serve_in_process.py),
[structured_outputs.py](../../examples/structured_outputs.py).

There is no client of ours for a running server: it speaks OpenAI's HTTP API, and OpenAI's own
client has types, retries and streams for it ([The OpenAI API](../guides/openai-api.md))."""
_ORDER = (
    *("load_config", "Config", "plan", "Plan", "simulate", "CaseReport"),
    *("Unit", "SamplingParams", "Output"),
)
# Values inside of a public one.
_INNER: dict[str, tuple[type, ...]] = {
    "Plan": (PlannedUnit, PlannedModel, PlannedExecution, PlannedWorker),
    "CaseReport": (GroupReport, SpreadReport, UseReport, FairnessReport),
}
_ERRORS = """\
## Errors

All are below `MuxClusterError`; [Errors](errors.md) has the whole tree. Arguments that no file or
request holds raise `ValueError`."""
_EXAMPLE = re.compile(r"(?:^(?:>>>|\.\.\.)[^\n]*\n?(?:^(?!>>>)[^\n]+\n?)*)+", re.MULTILINE)


def python_page() -> str:
    """Return the page."""
    kinds = {name: getattr(muxcluster, name) for name in muxcluster.__all__}
    errors = {name for name, kind in kinds.items() if _is_error(kind)}
    assert {*_ORDER, *errors} == set(kinds), "a public name is missing here"
    listed = table(
        ("error", "meaning"),
        [(f"`{name}`", first_line(kinds[name].__doc__)) for name in sorted(errors)],
    )
    return page(
        _INTRODUCTION,
        *(part for name in _ORDER for part in _parts(name, kinds[name])),
        _ERRORS,
        listed,
    )


def _is_error(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, MuxClusterError)


def _parts(name: str, item: Any) -> Iterator[str]:
    """Yield heading, signature and text of a public name, then its fields and methods."""
    # A heading's anchor is in small letters: `plan` and `Plan` need two.
    yield f"## class `{name}`" if isinstance(item, type) else f"## `{name}`"
    if not isinstance(item, type):
        yield _signature(name, item)
        yield _text(item)
        return
    fields = _fields(item)
    yield _text(item)
    yield _fields_table(fields)
    for method in _methods(item):
        if method.__name__ == "__init__":
            yield f"### `{name}()`"
            yield _signature(name, method)
            yield _text(method)
            continue
        yield f"### `{name}.{method.__name__}`"
        is_property = isinstance(vars(item)[method.__name__], property)
        yield _signature(method.__name__, method, is_property=is_property)
        yield _text(method)
    for inner in _INNER.get(name, ()):
        yield f"### `{inner.__name__}`"
        yield _text(inner)
        yield _fields_table(_fields(inner))


def _methods(kind: type) -> Iterator[Any]:
    """Yield the public methods and properties of a class's own, in order."""
    for name, member in vars(kind).items():
        found = member.fget if isinstance(member, property) else member
        found = found.__func__ if isinstance(found, classmethod) else found
        is_shown = not name.startswith("_") or (name == "__init__" and not _fields(kind))
        if is_shown and inspect.isfunction(found) and found.__doc__:
            yield found


def _signature(name: str, function: Any, *, is_property: bool = False) -> str:
    """Return the declaration as code; a parameter a line if it is long."""
    found = inspect.signature(function)
    parameters = [each for each in found.parameters.values() if each.name not in ("self", "cls")]
    found = found.replace(parameters=parameters)
    if is_property:
        kind = inspect.formatannotation(found.return_annotation)
        return f"```text\n{_short(f'{name}: {kind}')}\n```"
    word = "async def" if inspect.iscoroutinefunction(function) else "def"
    is_class = function.__name__ == "__init__"
    text = f"{name}{found}" if is_class else f"{word} {name}{found}"
    if is_class:
        text = text.removesuffix(" -> None")
    return f"```text\n{_short(text)}\n```"


def _short(text: str) -> str:
    """Return a declaration without the modules of its types, in lines of 100 characters."""
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)
    text = text.replace("SamplingParams(max_tokens", "SamplingParams(\0", 1)
    text = re.sub(r"SamplingParams\(\0.*?\)(?=\))", "SamplingParams()", text)
    if len(text) <= 96:
        return text
    head, inside, tail = re.fullmatch(r"([^(]*\()(.*)(\)(?: -> .*)?)", text).groups()
    parts = re.split(r", (?=\*|\w+:)", inside)
    return "\n".join([head, *(f"    {part}," for part in parts), tail]).replace("*,,", "*,")


def _text(item: Any) -> str:
    """Return a docstring as Markdown: what follows `>>>` is a block of code."""
    text = inspect.cleandoc(item.__doc__) + "\n"
    return _EXAMPLE.sub(lambda match: f"```pycon\n{match[0].strip()}\n```\n", text)


def _fields_table(fields: list[tuple[str, str, str, str]]) -> str:
    return table(("field", "type", "default", "meaning"), fields) if fields else ""


def _fields(kind: type) -> list[tuple[str, str, str, str]]:
    """Return name, type, default and note of each field, as they stand in the source."""
    source = textwrap.dedent(inspect.getsource(kind))
    lines = source.splitlines()
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    return [
        (
            f"`{node.target.id}`",
            f"`{ast.unparse(node.annotation)}`",
            "" if node.value is None else f"`{ast.unparse(node.value)}`",
            _note(lines, node.lineno - 1),
        )
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]


def _note(lines: list[str], index: int) -> str:
    """Return the comment on a field's line, else the one above it."""
    _, mark, beside = lines[index].partition("  # ")
    if mark:
        return beside
    above: list[str] = []
    while lines[index - 1].strip().startswith("# "):
        index -= 1
        above.insert(0, lines[index].strip().removeprefix("# "))
    return " ".join(above)
