"""`muxcluster trace`: where the time of one request went."""

import json
from pathlib import Path
from typing import Annotated

import typer

from muxcluster.cli.batch.options import LOCAL, Key, Url
from muxcluster.cli.watching.server import LiveServer
from muxcluster.cli.watching.times import choice_lines, chrome_trace
from muxcluster.cli.weights.server import AdminKey
from muxcluster.core.errors import ConfigError


def trace(
    request_id: Annotated[
        str, typer.Argument(metavar="ID", help="The answer's id, or its X-Request-Id.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Write a trace for Perfetto or chrome://tracing, too. A .json file."),
    ] = None,
    url: Url = LOCAL,
    api_key: Key = None,
    admin_key: AdminKey = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show where the time of request ID went, after its end.

    Each server process remembers the last few thousand requests that it answered itself.

    Examples: muxcluster trace chatcmpl-0d9f2c
              muxcluster trace chatcmpl-0d9f2c --out request.json
    """
    found = LiveServer.at(url, api_key, admin_key).request(request_id)
    if out is not None:
        try:
            out.write_text(json.dumps(chrome_trace(found["choices"])), encoding="utf-8")
        except OSError as error:
            raise ConfigError(out, "", f"cannot be written: {error.strerror}") from error
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        for choice in found["choices"]:
            typer.echo("\n".join(choice_lines(choice)))
