"""`muxcluster usage`: what the keys of tenants used on a running server."""

import http.client
import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlencode

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from muxcluster.cli.batch.options import LOCAL, Json, Url
from muxcluster.cli.terminal.asking import answer_at, bearer
from muxcluster.cli.weights.server import AdminKey
from muxcluster.core.errors import Unavailable
from muxcluster.core.inputs.web_url import checked_url

TIMEOUT_S = 30.0
COUNTS = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "refused")


class Part(StrEnum):
    """What a row is about."""

    DAY = "day"
    KEY = "key"
    MODEL = "model"


def usage(  # noqa: PLR0913 - each parameter is an option of the command line
    by: Annotated[
        list[Part] | None,
        typer.Option(help="Sum by this; may be given several times. By default all three."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Only this key, by its name.")] = None,
    model: Annotated[str | None, typer.Option(help="Only this model.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="YYYY-MM-DD", help="First day, in UTC.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="YYYY-MM-DD", help="Last day, in UTC.")
    ] = None,
    url: Url = LOCAL,
    admin_key: AdminKey = None,
    as_json: Json = False,
) -> None:
    """Show requests and tokens of each key, model and day; `server.keys` sets the keys.

    Examples: muxcluster usage --since 2026-01-01 --by key
              muxcluster usage --key team-a --json
    """
    given = {"key": key, "model": model, "since": since, "until": until}
    query = {name: value for name, value in given.items() if value is not None}
    rows = summed(_rows(url, admin_key, query), tuple(by or Part))
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        _show(rows, tuple(by or Part))


def summed(rows: Iterable[Mapping[str, Any]], parts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the sums of rows that agree in `parts`, sorted by these."""
    sums: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        place = tuple(row[part] for part in parts)
        found = sums.setdefault(place, {part: row[part] for part in parts})
        for count in COUNTS:
            found[count] = found.get(count, 0) + row[count]
    return [sums[place] for place in sorted(sums)]


def _rows(url: str, admin_key: str | None, query: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the server's rows. Raises ConfigError where it refuses, Unavailable."""
    checked_url(url)
    server = url.rstrip("/").removesuffix("/v1")
    target = f"usage?{urlencode(query)}" if query else "usage"
    with answer_at(server, target, None, bearer(admin_key), TIMEOUT_S) as answer:
        try:
            found = json.loads(answer.read())
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            raise Unavailable(f"{server} does not answer in JSON: {error}") from error
    rows = found.get("data") if isinstance(found, dict) else None
    if not isinstance(rows, list) or not all(map(_is_row, rows)):
        raise Unavailable(f"no muxcluster server answers at {server}, but another one")
    return rows


def _is_row(row: object) -> bool:
    return (
        isinstance(row, dict)
        and all(isinstance(row.get(part), str) for part in Part)
        and all(isinstance(row.get(count), int) for count in COUNTS)
    )


def _show(rows: Sequence[Mapping[str, Any]], parts: Sequence[str]) -> None:
    table = Table()
    for part in parts:
        table.add_column(part, no_wrap=True)
    for count in COUNTS:
        heading = count.removesuffix("_tokens").replace("completion", "output")
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        names = (escape(row[part]) for part in parts)
        table.add_row(*names, *(f"{row[count]:,}" for count in COUNTS))
    Console().print(table)
