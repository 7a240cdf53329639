"""Implementation of `muxcluster serve`, from the configuration to the last signal."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer
from rich.console import Console

from muxcluster.cli.server.launch import Prepared, free_address, prepare, serving, url_of
from muxcluster.cli.server.models import NamedModels, config_of_models
from muxcluster.cli.server.progress import ProgressPrinter
from muxcluster.cli.terminal.signals import Stopped, stoppable, wait_forever
from muxcluster.cli.terminal.telling import tell
from muxcluster.cluster.embedded import EmbeddedRay
from muxcluster.config.hub import Fetching, Wanted
from muxcluster.config.load import Config, load_config
from muxcluster.core.errors import ConfigError
from muxcluster.core.inputs.web_url import HttpAddress
from muxcluster.core.served import ServedModel


@dataclass(frozen=True, slots=True)
class Overrides:
    """Options of the command line; None leaves the file's value."""

    host: str | None
    port: int | None
    api_key: str | None
    admin_key: str | None
    lenient: bool | None


def run_server(source: Path | NamedModels, options: Overrides, drain_timeout_s: float) -> None:
    """Serve until a signal, whose exit code `typer.Exit` then carries.

    source: a configuration file, or models without one. Raises ConfigError, LoadError,
    InfeasiblePlan, EngineFailure.
    """
    console = Console(highlight=False, soft_wrap=True, markup=False)
    started_s = time.monotonic()
    try:
        with stoppable():
            prepared = _overridden(prepare(_read(source)), options)
            console.print(f"starting {_counted(prepared)} on a local Ray …")
            with serving(prepared, tell, ProgressPrinter(console)) as cluster:
                has_key = prepared.edge.settings.api_key is not None
                announce(console, prepared.models, prepared.url, has_key)
                tell_admin(console, prepared)
                console.print(f"ready after {time.monotonic() - started_s:.1f} s; Ctrl-C stops")
                block(cluster, drain_timeout_s)
    except Stopped as stopped:
        console.print("stopped")
        raise typer.Exit(stopped.exit_code) from None


def _read(source: Path | NamedModels) -> Config:
    """Return the configuration, with the models of the hub in its cache."""
    fetching = Fetching(Wanted.ALL, tell)
    if isinstance(source, Path):
        return load_config(source, fetching)
    return config_of_models(source, fetching)


def _overridden(prepared: Prepared, options: Overrides) -> Prepared:
    """Apply the options. Raises ConfigError if an address is taken."""
    settings, address = prepared.edge.settings, prepared.address
    if options.api_key is not None:
        settings = replace(settings, api_key=options.api_key)
    if options.admin_key is not None:
        settings = replace(settings, admin_key=options.admin_key)
    if options.lenient is not None:
        settings = replace(settings, lenient=options.lenient)
    host = address.host if options.host is None else options.host
    port = address.port if options.port is None else options.port
    address = free_address(HttpAddress(host, port))
    if settings.admin is not None:
        if settings.admin.overlaps(address):
            raise ConfigError(f"{host}:{port}", "", "is the address of server.admin, too")
        free_address(settings.admin)
    return replace(prepared, edge=replace(prepared.edge, settings=settings, listen=address))


def block(cluster: EmbeddedRay, drain_s: float) -> None:
    """Wait for a signal, then let the open requests end. Raises Stopped."""
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
        source = f"an adapter of {model.base}" if model.base else f"from {model.path}"
        line = f"  {model.name}: context {model.max_model_len}, {source}"
        console.print(line, markup=False)
    generating = (each for each in models if each.embedding is None and each.scoring is None)
    first = next(generating, models[0])
    route = "chat/completions"
    if first.embedding is not None or first.scoring is not None:
        route = "embeddings" if first.scoring is None else "rerank"
    console.print(curl_line(first.name, url, needs_key, route), markup=False)


def tell_admin(console: Console, prepared: Prepared) -> None:
    """One line if operators' routes have a port of their own."""
    settings = prepared.edge.settings
    if settings.admin is not None:
        url = url_of(settings.admin, is_tls=settings.tls is not None)
        console.print(f"  operators: {url}/dashboard")


_ASKED = {
    "chat/completions": '"messages": [{"role": "user", "content": "Hello"}]',
    "embeddings": '"input": "Hello"',
    "rerank": '"query": "Hello", "documents": ["Hi", "Bye"]',
}


def curl_line(
    model: str, url: str, needs_key: bool = False, route: str = "chat/completions"
) -> str:
    """Return a shell command that calls `model` by a route, one of `_ASKED`."""
    key = ' -H "Authorization: Bearer $MUXCLUSTER_API_KEY"' if needs_key else ""
    body = f'{{"model": "{model}", {_ASKED[route]}}}'
    return f"curl {url}/v1/{route}{key} -H 'Content-Type: application/json' -d '{body}'"


def _counted(prepared: Prepared) -> str:
    return f"{len(prepared.models)} model(s) in {len(prepared.desired.targets)} unit(s)"
