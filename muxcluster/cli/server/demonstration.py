"""Implementation of `muxcluster demo`: build the models, serve them and send them a burst."""

import os
from pathlib import Path

import typer
from rich.console import Console

from muxcluster.cli.server.launch import free_address, prepare, serving, url_of
from muxcluster.cli.server.serving import block, curl_line
from muxcluster.cli.terminal.signals import Stopped, stoppable
from muxcluster.config.load import load_config
from muxcluster.core.errors import ConfigError, EngineFailure
from muxcluster.core.inputs.web_url import HttpAddress
from muxcluster.demo.setup import MODELS, build_models, expected_loads, write_config
from muxcluster.demo.show import Outcome, perform
from muxcluster.demo.workload import Burst, BurstSize, Scale, make_burst

DRAIN_S = 2.0


def demonstrate(out: Path, port: int, size: BurstSize, *, keep: bool) -> None:
    """Build the models in `out`, serve them at `port` and show a burst of requests.

    keep: serve until a signal, whose exit code `typer.Exit` then carries. Raises ConfigError,
    EngineFailure.
    """
    console = Console(highlight=False, soft_wrap=True, markup=False)
    burst = _burst(size)
    try:
        with stoppable():
            config = _make_models(console, out, size.seed, burst)
            address = free_address(HttpAddress("127.0.0.1", port))
            prepared = prepare(load_config(config)).listening(address)
            console.print("Starting an embedded local Ray and one unit for all models …")
            with serving(prepared) as cluster:
                _check(perform(console, url_of(address), cluster.ask, burst, out))
                if keep:
                    console.print("The server stays up; Ctrl-C stops it. Try:")
                    console.print(curl_line(MODELS[0].name, url_of(address)))
                    block(cluster, DRAIN_S)
    except Stopped as stopped:
        console.print("stopped")
        raise typer.Exit(stopped.exit_code) from None


def _burst(size: BurstSize) -> Burst:
    data = os.environ.get("MUXCLUSTER_DATA")
    folder = Path(data) if data else Path("..") / "shared" / "data"
    return make_burst([model.name for model in MODELS], size, Scale(), folder)


def _make_models(console: Console, out: Path, seed: int, burst: Burst) -> Path:
    """Write models and configuration to `out`; return the latter's path. Raises ConfigError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise ConfigError("--out", "", f"{str(out)!r} cannot be a folder: {error}") from error
    console.print(f"Three small models with random weights (their text is noise) in {out}/models:")
    paths = build_models(out / "models", seed)
    for model in MODELS:
        console.print(f"  {model.describe()}")
    return write_config(out, paths, expected_loads(burst))


def _check(outcome: Outcome) -> None:
    """Raise EngineFailure if the demonstration did not show what it should."""
    if outcome.failures:
        raise EngineFailure(f"{len(outcome.failures)} requests failed: {outcome.failures[0]}")
    if outcome.overlap_s <= 0:
        raise EngineFailure("the models' answers did not stream at the same time")
