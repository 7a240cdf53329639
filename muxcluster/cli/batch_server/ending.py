"""The end of a command that waited for a server's batch."""

import json

import typer

from muxcluster.cli.batch_local.files import ResultFiles
from muxcluster.cli.batch_server.client import ApiObject, BatchServer
from muxcluster.cli.batch_server.collecting import collect
from muxcluster.cli.batch_server.showing import batch_line


def report(
    server: BatchServer, batch: ApiObject, files: ResultFiles | None, *, as_json: bool
) -> None:
    """Bring the results to `files`, if any, and print the batch, which is over.

    Raises StorageFailed, Unavailable; typer.Exit (1) where the batch did not complete.
    """
    told = [] if files is None else collect(server, batch, files)
    typer.echo(json.dumps(batch, indent=2) if as_json else "\n".join([batch_line(batch), *told]))
    if batch["status"] != "completed":
        raise typer.Exit(1)
