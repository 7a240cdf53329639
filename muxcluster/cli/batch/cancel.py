"""`muxcluster batch cancel`: end a server's batch with what it has."""

import json

import typer

from muxcluster.cli.batch.options import LOCAL, BatchId, Json, Key, Url
from muxcluster.cli.batch_server.client import BatchServer
from muxcluster.cli.batch_server.showing import batch_line


def cancel(batch_id: BatchId, url: Url = LOCAL, api_key: Key = None, as_json: Json = False) -> None:
    """End a server's batch: what is answered is kept, the other lines are told so.

    Example: muxcluster batch cancel batch_0f3a
    """
    batch = BatchServer(url, api_key).cancel(batch_id)
    typer.echo(json.dumps(batch, indent=2) if as_json else batch_line(batch))
