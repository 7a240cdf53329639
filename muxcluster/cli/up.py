"""`muxcluster up`: makes a Ray cluster run what a configuration says."""

from pathlib import Path
from typing import Annotated

import typer


def up(
    config: Annotated[Path, typer.Argument(help="muxcluster.yaml")],
    address: Annotated[
        str, typer.Option(help="The Ray cluster; auto: the one this machine is part of.")
    ] = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds until all must run; else exit code 1.")
    ] = 900.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the change as JSON.")] = False,
) -> None:
    """Plan for the nodes of a Ray cluster, show what changes, and make it so; then wait.

    What runs and stays is not touched; the rest moves unit by unit, and no request fails.

    Example: muxcluster up muxcluster.yaml --yes
    """
    from muxcluster.cli.server.apply import UpOptions, apply

    apply(config, UpOptions(address, timeout, dry_run=dry_run, yes=yes, as_json=as_json))
