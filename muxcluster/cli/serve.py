"""`muxcluster serve`: the whole server in one process tree on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from muxcluster.cli.keys import key_option


def serve(
    config: Annotated[Path, typer.Argument(help="muxcluster.yaml")],
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="MUXCLUSTER_API_KEY", callback=key_option, help="Key that clients must send."
        ),
    ] = None,
    lenient: Annotated[
        bool | None, typer.Option("--lenient", help="Drop unknown request fields.")
    ] = None,
    drain_timeout: Annotated[
        float, typer.Option(min=0.0, help="Seconds that open requests get after SIGTERM.")
    ] = 30.0,
) -> None:
    """Serve the models of CONFIG over HTTP until SIGINT or SIGTERM; options win over the file.

    Example: muxcluster serve muxcluster.yaml --port 8000
    """
    from muxcluster.cli.server.serving import Overrides, run_server

    run_server(config, Overrides(host, port, api_key, lenient), drain_timeout)
