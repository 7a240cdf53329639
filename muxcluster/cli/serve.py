"""`muxcluster serve`: the whole server in one process tree on this machine."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from muxcluster.cli.launch import Prepared, free_address, prepare, serving, url_of
from muxcluster.cli.signals import Stopped, stoppable, wait_forever
from muxcluster.cluster.embedded import EmbeddedRay, HttpAddress
from muxcluster.core.served import ServedModel


def serve(
    config: Annotated[Path, typer.Argument(help="muxcluster.yaml")],
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="MUXCLUSTER_API_KEY", help="Key that clients must send."),
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
    console = Console(highlight=False, soft_wrap=True)
    started_s = time.monotonic()
    try:
        with stoppable():
            prepared = _overridden(prepare(config), Overrides(host, port, api_key, lenient))
            console.print(f"starting {_counted(prepared)} on a local Ray …")
            with serving(prepared) as cluster:
                has_key = prepared.edge.settings.api_key is not None
                announce(console, prepared.models, url_of(prepared.address), has_key)
                console.print(f"ready after {time.monotonic() - started_s:.1f} s; Ctrl-C stops")
                block(cluster, drain_timeout)
    except Stopped as stopped:
        console.print("stopped")
        raise typer.Exit(stopped.exit_code) from None


@dataclass(frozen=True, slots=True)
class Overrides:
    """Options of the command line; None leaves the file's value."""

    host: str | None
    port: int | None
    api_key: str | None
    lenient: bool | None


def _overridden(prepared: Prepared, options: Overrides) -> Prepared:
    """Raises ConfigError where the address is taken."""
    settings, address = prepared.edge.settings, prepared.address
    if options.api_key is not None:
        settings = replace(settings, api_key=options.api_key)
    if options.lenient is not None:
        settings = replace(settings, lenient=options.lenient)
    host = address.host if options.host is None else options.host
    port = address.port if options.port is None else options.port
    address = free_address(HttpAddress(host, port))
    return replace(prepared, edge=replace(prepared.edge, settings=settings, listen=address))


def block(cluster: EmbeddedRay, drain_s: float) -> None:
    """Until a signal; then let the open requests end. Raises Stopped."""
    try:
        wait_forever()
    except Stopped:
        cluster.drain(drain_s)
        raise


def announce(
    console: Console, models: Sequence[ServedModel], url: str, needs_key: bool = False
) -> None:
    """One line per model and a call to paste."""
    for model in models:
        console.print(f"  {model.name}: context {model.max_model_len}, from {model.path}")
    console.print(curl_line(models[0].name, url, needs_key))


def curl_line(model: str, url: str, needs_key: bool = False) -> str:
    """A chat with `model` for a shell."""
    key = ' -H "Authorization: Bearer $MUXCLUSTER_API_KEY"' if needs_key else ""
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    return f"curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"


def _counted(prepared: Prepared) -> str:
    return f"{len(prepared.models)} model(s) in {len(prepared.desired.targets)} unit(s)"
