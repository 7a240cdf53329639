"""`muxcluster serve`: the whole server in one process tree on this machine."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from muxcluster.api.settings import ApiSettings
from muxcluster.cli.launch import Prepared, choose_address, prepare, serving, url_of
from muxcluster.cli.signals import Stopped, stoppable, wait_forever
from muxcluster.cluster.embedded import EmbeddedRay
from muxcluster.core.served import ServedModel


def serve(
    config: Annotated[Path, typer.Argument(help="muxcluster.yaml")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="MUXCLUSTER_API_KEY", help="Key that clients must send."),
    ] = None,
    lenient: Annotated[bool, typer.Option(help="Drop unknown request fields.")] = False,
    drain_s: Annotated[
        float, typer.Option(help="Seconds that running requests get after SIGTERM.")
    ] = 10.0,
) -> None:
    """Serve the models of CONFIG over HTTP until SIGINT or SIGTERM.

    Example: muxcluster serve muxcluster.yaml --port 8000
    """
    console = Console(highlight=False, soft_wrap=True)
    started_s = time.monotonic()
    settings = ApiSettings(api_key=api_key, lenient=lenient)
    try:
        with stoppable():
            prepared = prepare(config)
            address = choose_address(host, port)
            console.print(f"starting {_counted(prepared)} on a local Ray …")
            with serving(prepared, address, settings) as cluster:
                announce(console, prepared.models, url_of(address), api_key is not None)
                console.print(f"ready after {time.monotonic() - started_s:.1f} s; Ctrl-C stops")
                block(cluster, drain_s)
    except Stopped as stopped:
        console.print("stopped")
        raise typer.Exit(stopped.exit_code) from None


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
    return f"{len(prepared.models)} model(s) in {len(prepared.specs)} unit(s)"
