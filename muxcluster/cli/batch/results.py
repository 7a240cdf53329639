"""`muxcluster batch results`: the answers of a server's batch."""

from pathlib import Path
from typing import Annotated

import typer

from muxcluster.cli.batch.options import LOCAL, BatchId, Key, Url
from muxcluster.cli.batch_local.files import ResultFiles
from muxcluster.cli.batch_server.client import BatchServer
from muxcluster.cli.batch_server.collecting import collect
from muxcluster.cli.batch_server.showing import OVER, batch_line
from muxcluster.core.errors import Unavailable


def results(
    batch_id: BatchId,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Answers go there, a line each. Example: -o answers.jsonl"
        ),
    ],
    url: Url = LOCAL,
    api_key: Key = None,
) -> None:
    """Bring the answers of a batch that has ended, whatever ended it.

    Lines without an answer go to OUTPUT's neighbour `.errors.jsonl`. Exit code 1 where the batch
    has not ended yet.

    Example: muxcluster batch results batch_0f3a -o answers.jsonl
    """
    files = ResultFiles(output)
    files.check_free()
    server = BatchServer(url, api_key)
    batch = server.batch(batch_id)
    if batch["status"] not in OVER:
        raise Unavailable(f"no results yet: {batch_line(batch)}")
    typer.echo("\n".join(collect(server, batch, files)))
