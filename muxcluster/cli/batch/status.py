"""`muxcluster batch status`: how far batches of a server are."""

import json
from typing import Annotated

import typer
from rich.console import Console

from muxcluster.cli.batch.options import LOCAL, Json, Key, Url
from muxcluster.cli.batch_server.client import BatchServer
from muxcluster.cli.batch_server.following import followed
from muxcluster.cli.batch_server.showing import batch_line, show_batches
from muxcluster.core.errors import Unavailable


def status(
    batch_id: Annotated[str | None, typer.Argument(help="One batch; without: the newest")] = None,
    count: Annotated[int, typer.Option(min=1, max=100, help="Of the newest.")] = 20,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="Print a line, or a line of JSON, at each change until the batch ends."
        ),
    ] = False,
    url: Url = LOCAL,
    api_key: Key = None,
    as_json: Json = False,
) -> None:
    """Show how far a server's batch is, or your newest ones, and when they should end.

    Example: muxcluster batch status batch_0f3a --json
    """
    server = BatchServer(url, api_key)
    if follow:
        if batch_id is None:
            raise typer.BadParameter("--follow needs the id of one batch")
        _follow(server, batch_id, as_json=as_json)
        return
    if batch_id is not None:
        batch = server.batch(batch_id)
        typer.echo(json.dumps(batch, indent=2) if as_json else batch_line(batch))
        return
    batches = server.batches(count)
    if as_json:
        typer.echo(json.dumps(batches, indent=2))
    else:
        show_batches(Console(), batches)


def _follow(server: BatchServer, batch_id: str, *, as_json: bool) -> None:
    """Print the batch whenever what is printed changes."""
    printed = None
    for batch in followed(server, batch_id):
        if isinstance(batch, Unavailable):
            typer.echo(f"muxcluster: {batch}", err=True)
            continue
        text = json.dumps(batch) if as_json else batch_line(batch)
        if text != printed:
            typer.echo(text)
            printed = text
