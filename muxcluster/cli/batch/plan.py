"""`muxcluster batch plan`: what a batch job shares, and which order it should run in."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from muxcluster.batch.plan.prediction import AUTO, LENGTHS, PredictionOptions, compare
from muxcluster.batch.plan.setting import settings_of
from muxcluster.cli.batch.options import Key
from muxcluster.cli.batch_server.client import BatchServer
from muxcluster.cli.batch_server.forecast import forecast_lines, uses_of
from muxcluster.cli.placing.files import check_writable, write_bytes
from muxcluster.cli.placing.inputs import ProfileOption, with_profile
from muxcluster.cli.terminal.telling import tell
from muxcluster.cli.views.batch_job import plan_content, plan_lines, plan_uses
from muxcluster.cli.views.pictures import picture_of
from muxcluster.cli.views.several_jobs import (
    compare_several,
    several_content,
    several_lines,
    several_uses,
    surveyed,
)
from muxcluster.config.hub import Fetching, Wanted
from muxcluster.config.load import load_config
from muxcluster.offline.order.orders import ORDERS
from muxcluster.offline.predictor import UseOverTime
from muxcluster.scheduling.lanes import LANES
from muxcluster.workload.files.batchfile import BadLines, Skips

_FORECAST_KEPT_S = 3600  # a file whose command was killed is deleted after an hour


def plan(  # noqa: PLR0913 - each parameter is an option of the command line
    context: typer.Context,
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
        typer.Option(
            help="Of CONFIG, that the job is for; needed where it has several and FILE's lines "
            "name none. Example: --model chat"
        ),
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
    server: Annotated[
        str | None,
        typer.Option(
            help="Let this server predict the job, with its tokenizers, on the units it runs. "
            "Example: --server http://127.0.0.1:8000",
            show_default=False,
        ),
    ] = None,
    api_key: Key = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw compute, bandwidth, density and KV over time, .svg or .png. "
            "Example: --plot job.svg"
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON alone. Example: --json | jq .order")
    ] = False,
) -> None:
    """Tell what the job in FILE shares, and predict how long it takes in each order.

    The engine's own scheduler runs it on a virtual clock, alone on the units that serve the model,
    among which it is divided; no GPU is needed. Where a unit of one model would end sooner with
    prefill and decode side by side, or without, a last line says so. Where its lines name several
    models, those that share units are predicted at once and one after the other, too. Text is taken
    as four bytes a token. Lines that are no requests are told of and left out, as `batch run` does.

    With --server nothing is read here but FILE: the server gets it, predicts its duration, tokens
    and prefix hits in the way that it would run it, and deletes it. No batch is started.

    Exit code 2 where a file or an option is wrong, no line is a request or the models do not fit.

    Example: muxcluster batch plan job.jsonl --config muxcluster.yaml --order auto
    """
    drawn: Callable[[Mapping[str, UseOverTime], str], bytes] | None = None
    if plot is not None:
        drawn = picture_of("muxcluster.sim.plot.job", plot)
        check_writable(plot)
    if server is not None:
        _check_alone(context)
        foretold = _foretold(BatchServer(server, api_key), file)
        if plot is not None and drawn is not None:
            write_bytes(plot, drawn(uses_of(foretold), plot.suffix[1:].lower()))
        for line in [json.dumps(foretold, indent=2)] if as_json else forecast_lines(foretold):
            typer.echo(line)
        return
    _check_named("--order", order, (AUTO, *ORDERS))
    _check_named("--lengths", lengths, LENGTHS)
    if lane is not None:
        _check_named("--lane", lane, tuple(LANES))
    read = load_config(config, Fetching(Wanted.TEXT, tell))
    read = read if profile is None else with_profile(read, profile)
    options = PredictionOptions(order, sample, seed, lengths == LENGTHS[1], tries_ways=True)
    asked = surveyed(file, read, model)
    if len(asked.models) > 1:
        several = compare_several(read, asked.models, file, options, (plan, lane))
        content, lines = several_content(several), several_lines(several)
        uses = several_uses(several)
    else:
        name = asked.models[0] if asked.models else model
        found = compare(settings_of(read, name, plan, lane), file, options, Skips(bad=True))
        content, lines, uses = plan_content(found), plan_lines(found), plan_uses(found)
    if plot is not None and drawn is not None:
        write_bytes(plot, drawn(uses, plot.suffix[1:].lower()))
    _print(content, lines, asked.bad, as_json=as_json)


def _check_alone(context: typer.Context) -> None:
    """Raise BadParameter for an option that a server does not take."""
    for name in (
        "config",
        "model",
        "order",
        "sample",
        "lengths",
        "lane",
        "plan",
        "profile",
        "seed",
    ):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"--{name} goes without --server, which plans in its own way")


def _foretold(server: BatchServer, file: Path) -> Mapping[str, Any]:
    """Return what the server predicts for the job, which it does not keep."""
    file_id = server.upload(file, _FORECAST_KEPT_S)
    try:
        return server.plan(file_id)
    finally:
        server.delete(file_id)


def _print(content: dict[str, Any], lines: Iterable[Text], bad: BadLines, *, as_json: bool) -> None:
    if as_json:
        told = {"num": bad.num, "first": [str(error) for error in bad.first]}
        typer.echo(json.dumps({**content, "bad_lines": told}, indent=2))
        return
    console = Console(highlight=False)
    for line in lines:
        console.print(line, soft_wrap=True)
    if bad.num:
        typer.echo(f"muxcluster: {bad.num} lines are no requests and are left out:", err=True)
        for error in bad.first:
            typer.echo(f"  {error}", err=True)
        if bad.num > len(bad.first):
            typer.echo(f"  and {bad.num - len(bad.first)} more", err=True)


def _check_named(option: str, name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise typer.BadParameter(f"{option} {name}: expected one of {', '.join(names)}")
