"""Committed records of bench/results: values by path, and how figures are written."""

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "bench" / "results"
Record = Mapping[str, Any]


@cache
def record(name: str) -> Record | None:
    """Return bench/results/NAME.json, or the file of that name in one of its folders; None where no
    such record is committed."""
    path = RESULTS / f"{name}.json"
    found = [path] if path.exists() else sorted(RESULTS.glob(f"*/{name}.json"))
    if not found:
        return None
    read: Record = json.loads(found[0].read_text(encoding="utf-8"))
    return read


def needed(name: str) -> Record:
    """Return a record that has to be there. Raises LookupError."""
    found = record(name)
    if found is None:
        raise LookupError(f"bench/results has no {name}.json")
    return found


def claim(name: str, of: str) -> Mapping[str, Any]:
    """Return the claim `name` of the record `of`. Raises LookupError."""
    for each in needed(of)["claims"]:
        if each["name"] == name:
            found: Mapping[str, Any] = each
            return found
    raise LookupError(f"the record {of} has no claim {name}")


def value_at(path: str, of: str) -> Any:
    """Return what the record `of` has at a path.

    Steps are divided by "/": `claim NAME`, `baseline NAME` (of that claim), the key of an object,
    `KEY=VALUE` for the first row of a list with that value, or a number for an item.
    Raises LookupError for a path that leads nowhere.
    """
    value: Any = needed(of)
    for step in path.split("/"):
        if step.startswith("claim "):
            value = claim(step.removeprefix("claim "), of)["value"]
        elif step.startswith("baseline "):
            value = claim(step.removeprefix("baseline "), of)["baseline"]
        elif isinstance(value, list) and "=" in step:
            value = _row(value, step, of)
        elif isinstance(value, list):
            value = value[int(step)]
        elif step in value:
            value = value[step]
        else:
            raise LookupError(f"the record {of} has nothing at {path}: no {step}")
    return value


def _row(rows: list[Any], step: str, of: str) -> Any:
    key, _, wanted = step.partition("=")
    for row in rows:
        if str(row.get(key)) == wanted:
            return row
    raise LookupError(f"the record {of} has no row with {step}")


def percent(value: float) -> str:
    """Return a share in percent, with a digit more near nothing and near all."""
    is_near_an_end = abs(value) < 0.0995 or 0.99 < abs(value) < 1
    shown = round(value * 100, 1 if is_near_an_end else 0)
    return f"{shown + 0.0:g} %"


def times(value: float) -> str:
    """Return a factor."""
    return f"{value:.2f}×" if value < 10 else f"{value:.1f}×"


def seconds(value: float) -> str:
    """Return seconds in their best unit."""
    if value < 0.9995e-3:
        return f"{value * 1e6:.3g} µs"
    if value < 0.995:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if value < 100 else f"{value:,.0f} s"


def number(value: float) -> str:
    """Return a plain number with three significant digits, whole above a hundred."""
    if float(value).is_integer() or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "percent": percent,
    "cut": lambda value: percent(value).replace("-", "−"),
    "times": times,
    "seconds": seconds,
    "ms": lambda value: seconds(value / 1e3),
    "us": lambda value: seconds(value / 1e6),
    "number": number,
    "gigabytes": lambda value: f"{value / 1e9:.1f} GB",
    "minutes": lambda value: f"{value / 60:g}",
    "text": str,
}
_UNITS = {"x": "times", "times": "times", "share": "percent", "s": "seconds", "us": "us"}
_UNITS |= {"ms": "ms", "bytes": "gigabytes"}


def with_unit(value: float | None, unit: str) -> str:
    """Return a claim's value as its unit says."""
    if value is None:
        return ""
    if unit in _UNITS:
        return FORMATS[_UNITS[unit]](value).replace("-", "−")
    if unit.startswith("of "):
        return percent(value)
    return number(value) if unit == "1" else f"{number(value)} {unit}".strip()


# Options that say where that machine had its files.
_PLACES = re.compile(r" --(?:json|cache|data|rows|plot|processes) \S+")


def run_of(name: str) -> str:
    """Say with which command, where and when a record was made."""
    found = needed(name)
    machine = found["machine"]
    folder = "bench/results" if (RESULTS / f"{name}.json").exists() else "bench/results/…"
    changed = " with changes" if found.get("changed_files") else ""
    return (
        f"Record `{folder}/{name}.json`: `{_PLACES.sub('', found['command'])}`, commit "
        f"{(found['commit'] or 'unknown')[:8]}{changed}, {found['started'][:10]}, "
        f"{machine['cores']} cores of {machine['cpu']}."
    )
