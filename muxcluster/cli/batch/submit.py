"""`muxcluster batch submit`: a file of requests handed to a server."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from muxcluster.batch.store.entry import ENDPOINTS, parse_entry
from muxcluster.batch.store.job import lifetime_s, window_s
from muxcluster.batch.store.lines import read_lines
from muxcluster.cli.batch.options import LOCAL, Json, Key, Output, Url
from muxcluster.cli.batch_local.files import ResultFiles
from muxcluster.cli.batch_server.client import BatchServer
from muxcluster.cli.batch_server.ending import report
from muxcluster.cli.batch_server.waiting import wait_for
from muxcluster.core.errors import ConfigError, RequestError

_LINE_BYTES = 2**25


def submit(  # noqa: PLR0913 - each parameter is an option of the command line
    file: Annotated[Path, typer.Argument(help="The job, JSON lines in OpenAI's batch format")],
    window: Annotated[
        str, typer.Option(help="It ends then, done or not: 1m to 30d. Example: --window 2h")
    ] = "24h",
    endpoint: Annotated[
        str | None,
        typer.Option(help=f"The url of all its lines, {' or '.join(ENDPOINTS)} (the first line's)"),
    ] = None,
    expires_after: Annotated[
        str | None,
        typer.Option(
            help="The server deletes the file so long after it came, and the results so long "
            "after the end: 1h to 30d. Without it both are kept. Example: --expires-after 7d",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end.")] = False,
    output: Output = None,
    url: Url = LOCAL,
    api_key: Key = None,
    as_json: Json = False,
) -> None:
    """Hand the requests in FILE to a server and print the batch's id.

    With --wait or -o the command waits for its end; interrupted, the batch goes on. Exit code 1
    where the batch did not complete, 2 where the server refuses it.

    Example: muxcluster batch submit job.jsonl --window 2h -o answers.jsonl
    """
    try:
        window_s(window)
    except RequestError as error:
        raise typer.BadParameter(f"--window: {error.message}") from error
    try:
        kept_s = None if expires_after is None else lifetime_s(expires_after)
    except RequestError as error:
        raise typer.BadParameter(f"--expires-after: {error.message}") from error
    files = None if output is None else ResultFiles(output)
    if files is not None:
        files.check_free()
    server = BatchServer(url, api_key)
    endpoint = endpoint or _first_url(file)
    batch = server.create(server.upload(file, kept_s), endpoint, window, kept_s)
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    if wait or files is not None:
        console.print(f"{batch['id']} is submitted")
        try:
            batch = wait_for(server, batch["id"], console)
        except KeyboardInterrupt:
            console.print(f"the batch goes on: muxcluster batch status {batch['id']}")
            raise
        report(server, batch, files, as_json=as_json)
    else:
        typer.echo(json.dumps(batch, indent=2) if as_json else batch["id"])


def _first_url(path: Path) -> str:
    """Return the url of the first valid request. Raises ConfigError if there is none."""
    try:
        with path.open("rb") as file:
            for line in read_lines(file, _LINE_BYTES):
                try:
                    return parse_entry(line.data or b"").url
                except RequestError:
                    continue
    except OSError as error:
        raise ConfigError(path, "", f"cannot be read: {error.strerror}") from error
    raise ConfigError(path, "", "no line of it is a request")
