"""The screens of `muxcluster top`: the whole server, and one model by unit."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from muxcluster.cli.views.words import percent_text
from muxcluster.cli.watching.browser import Browser
from muxcluster.cli.watching.rows import (
    MODEL_TITLES,
    UP,
    Snapshot,
    batch_line,
    event_text,
    model_lines,
    plain,
    problems,
    rows_of_model,
    shown_columns,
    sorted_models,
    unit_row,
)

_GOOD = ("up", "resident", "ready")
_SOON = ("loading", "recovering", "waking", "parking", "starting", "draining", "parked", "cold")
_MOST_EVENTS = 5
_LEAST_ROWS = 3
_HELP = "q quit, s sort, arrows and enter or a number open a model, escape goes back"


@dataclass(frozen=True, slots=True)
class Frame:
    """What a screen shows. snapshot: the last one, None before the first."""

    url: str
    snapshot: Snapshot | None
    problem: str | None = None  # why there is no newer snapshot
    silent_s: float = 0.0  # since the last answer, or the start


def whole(frame: Frame, browser: Browser, width: int, height: int | None = None) -> RenderableType:
    """Return the screen of a terminal. height: its lines; None shows every unit and model."""
    snapshot = frame.snapshot
    if snapshot is None:
        return Group(*_head(frame))
    if browser.opened is not None:
        return Group(*_head(frame), *_opened(snapshot, browser.opened), _foot(browser))
    above = [*_head(frame), *(Text(line, style="red") for line in problems(snapshot))]
    batches = batch_line(snapshot)
    below = [_line(batches)] if batches else []
    below += _events(snapshot)
    below += [] if height is None else [_foot(browser)]
    most_units = most_models = None
    if height is not None:
        most_units = max(_LEAST_ROWS, height // 4)
        num_units = min(most_units, len(snapshot["units"]))
        # two lines of titles, an empty one before each table
        most_models = max(_LEAST_ROWS, height - len(above) - len(below) - num_units - 5)
    units = _units(snapshot["units"], most_units)
    return Group(
        *above, Text(), units, Text(), _models(snapshot, browser, width, most_models), *below
    )


def _head(frame: Frame) -> Iterator[Text]:
    snapshot, line = frame.snapshot, _line(plain(frame.url), "bold")
    if snapshot is not None:
        state = ("ready", "green") if snapshot["ready"] else ("not ready", "red")
        num_up = sum(unit["state"] == UP for unit in snapshot["units"])
        shown = time.strftime("%H:%M:%S", time.localtime(snapshot["time_s"]))
        counts = f"{num_up} of {len(snapshot['units'])} units up, {len(snapshot['models'])} models"
        nodes = snapshot["cluster"]["nodes"]
        if nodes:
            counts = f"{sum(node['alive'] for node in nodes)} of {len(nodes)} nodes, {counts}"
        line.append("  ").append(*state)
        line.append(f"  {counts}  {shown}  {plain(snapshot['version'])}", style="not bold")
    yield line
    if frame.problem is not None:
        text = f"no answer for {frame.silent_s:.0f} s: {plain(frame.problem)}; trying again"
        yield _line(text, "bold red")


def _units(units: Sequence[Mapping[str, Any]], most: int | None) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("unit", "GPUs", "state", "KV free", "SMs, 30 s", "now"):
        # the last one alone gets narrower than its text
        table.add_column(title, no_wrap=title != "now")
    # what is not up is shown first where not all can be
    order = units if most is None else sorted(units, key=lambda unit: unit["state"] == UP)
    for unit in order[:most]:
        name, place, state, free, bars, now = unit_row(unit)
        style = _tone("draining" if unit["draining"] else unit["state"])
        table.add_row(
            *(Text(name), Text(place), Text(state, style=style), Text(free), Text(bars)),
            _line(now),
        )
    return table


def _models(snapshot: Snapshot, browser: Browser, width: int, most: int | None) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("#", justify="right", no_wrap=True)
    columns = shown_columns(width)
    for i, column in enumerate(columns):
        justify: JustifyMethod = "left" if i < 2 else "right"
        style = "bold" if column is browser.column else "dim"
        table.add_column(Text(column.title, style=style), justify=justify, no_wrap=i > 0)
    numbers = {model["name"]: i for i, model in enumerate(snapshot["models"], 1)}
    models = sorted_models(snapshot["models"], browser.column)
    names = [model["name"] for model in models]
    first = _first_row(names, browser.selected, most)
    for model in models[first : None if most is None else first + most]:
        name, state, *cells = (column.text(model) for column in columns)
        texts = (_line(name), Text(state, style=_tone(model["state"])), *map(Text, cells))
        style = "reverse" if model["name"] == browser.selected else ""
        table.add_row(str(numbers[model["name"]]), *texts, style=style)
    return table


def _first_row(names: Sequence[str], selected: str | None, most: int | None) -> int:
    """Return the first row to show so that the selected one is there."""
    if most is None or selected not in names:
        return 0
    return max(0, min(names.index(selected) - most // 2, len(names) - most))


def _opened(snapshot: Snapshot, name: str) -> Iterator[RenderableType]:
    model = next((each for each in snapshot["models"] if each["name"] == name), None)
    yield Text()
    if model is None:
        yield Text(f"{plain(name)} is not served any more", style="red")
        return
    yield Text(plain(name), style="bold")
    yield from map(Text, model_lines(model))
    yield Text()
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in MODEL_TITLES:
        table.add_column(title, no_wrap=True)
    for row in rows_of_model(snapshot, name):
        table.add_row(*map(Text, row))
    yield table
    yield Text()
    yield from _shares(snapshot, name)


def _shares(snapshot: Snapshot, name: str) -> Iterator[Text]:
    """Yield mean and highest SM share of each phase of a model, by unit."""
    for unit in snapshot["units"]:
        for series in unit["sm"]["series"] if unit["sm"] else ():
            if series["model"] == name and series["shares"]:
                mean = sum(series["shares"]) / len(series["shares"])
                highest = percent_text(max(series["shares"]))
                where = plain(f"{unit['id']} {series['phase']}")
                yield Text(f"{where}: {percent_text(mean)} of the SMs, at most {highest}")


def _events(snapshot: Snapshot) -> list[Text]:
    events = snapshot["events"][:_MOST_EVENTS]
    clock = [time.strftime("%H:%M:%S", time.localtime(event["time_s"])) for event in events]
    return [
        _line(f"{when} {event_text(event)}", "dim")
        for when, event in zip(clock, events, strict=True)
    ]


def _foot(browser: Browser) -> Text:
    typed = f"  number {browser.typed}" if browser.typed else ""
    return _line(f"sorted by {browser.column.title}; {_HELP}{typed}", "dim")


def _line(text: str, style: str = "") -> Text:
    """Return a text that is cut where the terminal ends."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _tone(state: str) -> str:
    if state in _GOOD:
        return "green"
    return "yellow" if state in _SOON else "red"
