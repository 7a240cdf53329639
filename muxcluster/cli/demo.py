"""`muxcluster demo`: three small models, one shared engine, a burst of requests, a picture."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server up.")] = False,
    out: Annotated[Path, typer.Option(help="Where models and pictures go.")] = Path(".demo"),
    seed: Annotated[
        int, typer.Option(min=0, max=2**31, help="Of weights, popularity and lengths.")
    ] = 0,
    requests: Annotated[int, typer.Option(min=3, max=100_000, help="Requests of the burst.")] = 90,
    seconds: Annotated[
        float, typer.Option(min=1.0, max=86_400, help="Length of the burst.")
    ] = 30.0,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 0,
) -> None:
    """Serve three small random models on this machine and send them a burst of requests.

    Example: muxcluster demo --keep
    """
    from muxcluster.cli.server.demonstration import demonstrate
    from muxcluster.demo.workload import BurstSize

    demonstrate(out, port, BurstSize(requests, seconds, seed), keep=keep)
