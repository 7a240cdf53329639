"""`muxcluster down`: ends everything that `up` started."""

import sys
from typing import Annotated

import typer
from rich.console import Console


def down(
    address: Annotated[
        str, typer.Option(help="The Ray cluster; auto: the one this machine is part of.")
    ] = "auto",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    ray: Annotated[
        bool, typer.Option("--ray", help="Stop Ray too, on every node, this one last.")
    ] = False,
) -> None:
    """Stop all units, ingresses and the controller of a Ray cluster; open requests are cut.

    Example: muxcluster down --yes
    """
    from muxcluster.cluster.attach import find_controller, joined, stop_everything
    from muxcluster.cluster.ray.end import stop_ray

    console = Console(highlight=False, soft_wrap=True, markup=False)
    with joined(address):
        if find_controller() is None and not ray:
            console.print("nothing of muxcluster runs there; what is left of it is ended")
        elif not yes:
            _confirm()
        stop_everything()
        console.print("stopped: units, ingresses, controller")
        if ray:
            for line in stop_ray():
                console.print(line)


def _confirm() -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody can be asked here: say --yes to stop everything")
    typer.confirm("Stop everything, and cut open requests?", abort=True)
