"""`muxcluster batch plan`: what a batch job shares, and which order it should run in."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from muxcluster.cli.batching.planning import AUTO, LENGTHS, Wish, compare
from muxcluster.cli.batching.setting import settings_of
from muxcluster.cli.batching.table import plan_content, plan_lines
from muxcluster.cli.placing.inputs import ProfileOption, with_profile
from muxcluster.config import load_config
from muxcluster.offline.orders import ORDERS
from muxcluster.scheduling.lanes import LANES


def plan(  # noqa: PLR0913 - each parameter is an option of the command line
    file: Annotated[
        Path,
        typer.Argument(
            help="The job, JSON lines: OpenAI's batch format, or "
            '{"prompt": text or token ids, "max_tokens": n, "output_tokens": n if known}'
        ),
    ],
    config: Annotated[
        Path, typer.Option(help="muxcluster.yaml. Example: --config muxcluster.yaml")
    ] = Path("muxcluster.yaml"),
    model: Annotated[
        str | None,
        typer.Option(help="Of CONFIG; needed where it has several. Example: --model chat"),
    ] = None,
    order: Annotated[
        str,
        typer.Option(
            help=f"{AUTO} (all of them; the fastest is taken), {', '.join(ORDERS)}. "
            "Example: --order blend"
        ),
    ] = AUTO,
    sample: Annotated[
        int,
        typer.Option(
            min=1,
            help="Requests that orders are predicted on, at most; they share as the whole does. "
            "Example: --sample 10000",
        ),
    ] = 2000,
    lengths: Annotated[
        str,
        typer.Option(
            help="What the plans are told of output lengths: sampled (nothing; they run some "
            "requests first and learn, as batch run does) or known. Example: --lengths known"
        ),
    ] = LENGTHS[0],
    lane: Annotated[
        str | None,
        typer.Option(
            help=f"Of {', '.join(LANES)}; by default the configured one. Example: --lane mixed",
            show_default=False,
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(help="A plan of `muxcluster place`. Example: --plan plan.json"),
    ] = None,
    profile: ProfileOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the sample and of order random.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON alone. Example: --json | jq .order")
    ] = False,
) -> None:
    """Tell what the job in FILE shares, and predict how long it takes in each order.

    The engine's own scheduler runs it on a virtual clock, alone on the units that serve the model,
    among which it is divided; no GPU is needed. Text is taken as four bytes a token. Exit code 2
    where a file or an option is wrong or the models do not fit.

    Example: muxcluster batch plan job.jsonl --config muxcluster.yaml --order auto
    """
    _check_named("--order", order, (AUTO, *ORDERS))
    _check_named("--lengths", lengths, LENGTHS)
    if lane is not None:
        _check_named("--lane", lane, tuple(LANES))
    read = load_config(config)
    read = read if profile is None else with_profile(read, profile)
    settings = settings_of(read, model, plan, lane)
    found = compare(settings, file, Wish(order, sample, seed, lengths == LENGTHS[1]))
    if as_json:
        typer.echo(json.dumps(plan_content(found), indent=2))
        return
    console = Console(highlight=False)
    for line in plan_lines(found):
        console.print(line, soft_wrap=True)


def _check_named(option: str, name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise typer.BadParameter(f"{option} {name}: expected one of {', '.join(names)}")
