"""`muxcluster demo`: three small models, one shared engine, a burst of requests, a picture."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from muxcluster.cli.launch import free_address, prepare, serving, url_of
from muxcluster.cli.serve import block, curl_line
from muxcluster.cli.signals import Stopped, stoppable
from muxcluster.cluster.embedded import HttpAddress
from muxcluster.core.errors import EngineFailure
from muxcluster.demo.setup import MODELS, build_models, expected_loads, write_config
from muxcluster.demo.show import Outcome, perform
from muxcluster.demo.workload import Burst, BurstSize, Scale, make_burst

DRAIN_S = 2.0


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server up.")] = False,
    out: Annotated[Path, typer.Option(help="Where models and pictures go.")] = Path(".demo"),
    seed: Annotated[int, typer.Option(help="Of weights, popularity and lengths.")] = 0,
    requests: Annotated[int, typer.Option(min=3, help="Requests of the burst.")] = 90,
    seconds: Annotated[float, typer.Option(min=1.0, help="Length of the burst.")] = 30.0,
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 0,
) -> None:
    """Serve three small random models on this machine and send them a burst of requests.

    Example: muxcluster demo --keep
    """
    console = Console(highlight=False, soft_wrap=True)
    burst = _burst(BurstSize(requests, seconds, seed))
    try:
        with stoppable():
            config = _make_models(console, out, seed, burst)
            address = free_address(HttpAddress("127.0.0.1", port))
            prepared = prepare(config).listening(address)
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
    """Models and configuration in `out`; the configuration's path."""
    out.mkdir(parents=True, exist_ok=True)
    console.print(f"Three small models with random weights (their text is noise) in {out}/models:")
    paths = build_models(out / "models", seed)
    for model in MODELS:
        console.print(f"  {model.describe()}")
    return write_config(out, paths, expected_loads(burst))


def _check(outcome: Outcome) -> None:
    """Raises EngineFailure where the demonstration did not show what it should."""
    if outcome.failures:
        raise EngineFailure(f"{len(outcome.failures)} requests failed: {outcome.failures[0]}")
    if outcome.overlap_s <= 0:
        raise EngineFailure("the models' answers did not stream at the same time")
