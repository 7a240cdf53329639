"""`muxcluster simulate`: policies side by side on a virtual clock, before anything is rented."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from muxcluster.cli.placing.files import check_writable, write_bytes
from muxcluster.cli.placing.inputs import ProfileOption, with_profile
from muxcluster.cli.simulating.batch import (
    BatchOption,
    LengthsOption,
    ModelOption,
    OrderOption,
    job_of,
    job_options,
)
from muxcluster.cli.simulating.comparison import Grid, Prepared, prepare, reports_of
from muxcluster.cli.simulating.hybrid import (
    HYBRID_SYSTEMS,
    HybridOption,
    OutputOption,
    PromptOption,
    WaveOption,
    batch_options,
)
from muxcluster.cli.simulating.tracing import traced
from muxcluster.cli.terminal.telling import tell
from muxcluster.cli.views.pictures import picture_of
from muxcluster.cli.views.simulation import comparison_lines
from muxcluster.cli.views.simulation_classes import class_lines
from muxcluster.config.hub import Fetching
from muxcluster.config.load import load_config
from muxcluster.sim.cases.sweep import Cache
from muxcluster.sim.cases.systems import SYSTEMS, System, system_named
from muxcluster.sim.demand.load_options import LoadOptions
from muxcluster.sim.report.report import CaseReport

_SYSTEMS = "muxserve,spatial,temporal"
_LONGEST_S = 7 * 86_400.0
_MOST_PROCESSES = 64


def simulate(  # noqa: PLR0913 - each parameter is an option of the command line
    config: Annotated[Path, typer.Argument(help="muxcluster.yaml")],
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Requests of a file: our own JSONL, or a trace of Azure or Mooncake, whose "
            "requests are given to the models by their rates. Models are planned for what it "
            "brings. Example: --trace conversation_trace.jsonl"
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Popularity as a power law instead of the configured rates: the i-th most popular "
            "model gets max-rate / i^alpha. Example: --alpha 0.7 --max-rate 20",
        ),
    ] = None,
    max_rate: Annotated[
        float | None,
        typer.Option(
            help="Requests/s of the most popular model, with --alpha; by default the highest "
            "configured rate. Example: --max-rate 20",
            show_default=False,
        ),
    ] = None,
    rate_scale: Annotated[
        str,
        typer.Option(
            help="Factors on all rates, each simulated (of a trace: on its speed). "
            "Example: --rate-scale 0.5,1,2"
        ),
    ] = "1",
    duration: Annotated[
        float,
        typer.Option(
            help="Seconds of virtual time in which requests come. Example: --duration 300"
        ),
    ] = 1200.0,
    systems: Annotated[
        str | None,
        typer.Option(
            help=f"Of {', '.join(SYSTEMS)}; parts are switched after a colon: placement=greedy"
            "|memory-greedy|spatial|spatial-load, sharing=on|off|mixed (SMs; mixed: one mixed job "
            "at a time), quotas=on|off (of the KV pool; off: fixed parts), packing=hybrid|priority"
            "|fcfs|round-robin (who is in a job). "
            "Example: --systems muxserve,muxserve:sharing=off,temporal",
            show_default=f"{_SYSTEMS}; with --hybrid muxserve in every packing",
        ),
    ] = None,
    hybrid: HybridOption = False,
    batch_prompt_tokens: PromptOption = None,
    batch_output_tokens: OutputOption = None,
    batch_requests: WaveOption = None,
    batch: BatchOption = None,
    order: OrderOption = None,
    lengths: LengthsOption = None,
    batch_model: ModelOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all random numbers.")] = 0,
    slo_scale: Annotated[
        float,
        typer.Option(
            help="A request is within its SLO where it takes at most this times what it takes "
            "alone on GPUs of its own. Example: --slo-scale 5"
        ),
    ] = 8.0,
    length_sigma: Annotated[
        float,
        typer.Option(
            min=0,
            max=4,
            help="Spread of the log-normal lengths around the configured means; 0: all alike.",
        ),
    ] = 1.0,
    plan: Annotated[
        Path | None,
        typer.Option(
            help="A plan of `muxcluster place` for the systems that are placed greedily. "
            "Example: --plan plan.json"
        ),
    ] = None,
    profile: ProfileOption = None,
    by_model: Annotated[
        bool, typer.Option("--by-model", help="Show each model of each system, too.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print JSON alone. Example: --json | jq .cases[0].total",
        ),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the comparison, .svg or .png. Example: --plot sim.svg")
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            help="Write the jobs of the last minute in which requests come, for Perfetto or "
            "chrome://tracing; cases are simulated one by one. Example: --timeline jobs.json"
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Keep plans and results in this directory and take them from there: a sweep that "
            "was broken off goes on. Example: --cache .simulated"
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(min=1, max=_MOST_PROCESSES, help="Cases that are simulated at a time."),
    ] = 2,
) -> None:
    """Compare systems on the models and GPUs of CONFIG; nothing is started, no GPU is needed.

    The engine's own scheduler and KV bookkeeping run on a virtual clock, jobs timed by the
    planner's cost model. Exit code 2 where a file or an option is wrong or nothing fits.

    Examples: muxcluster simulate muxcluster.yaml

    muxcluster simulate muxcluster.yaml --alpha 1.3 --max-rate 20 --rate-scale 0.5,1,2 --plot s.svg

    muxcluster simulate muxcluster.yaml --trace day.jsonl --systems muxserve,muxserve:quotas=off

    muxcluster simulate muxcluster.yaml --hybrid --batch-output-tokens 300

    muxcluster simulate muxcluster.yaml --batch job.jsonl --order blend
    """
    _check_numbers(duration, slo_scale, max_rate, alpha)
    if trace is not None and alpha is None and max_rate is not None:
        raise typer.BadParameter("--max-rate needs --alpha")
    options = LoadOptions(duration, seed, alpha, max_rate, length_sigma, trace)
    asked_job = job_options(batch, order, batch_model, lengths)
    waves = batch_options(hybrid, batch_prompt_tokens, batch_output_tokens, batch_requests)
    chosen = _systems(systems or (HYBRID_SYSTEMS if hybrid else _SYSTEMS))
    grid = Grid(chosen, _scales(rate_scale), options, slo_scale, plan, waves)
    drawn: Callable[[Sequence[CaseReport], str], bytes] | None = None
    if plot is not None:
        drawn = picture_of("muxcluster.sim.plot.comparison", plot)
    for path in (plot, timeline):
        if path is not None:
            check_writable(path)
    file = load_config(config, Fetching(tell=tell))
    file = file if profile is None else with_profile(file, profile)
    store = Cache(cache)
    with _waiting("planning"):
        if asked_job is not None:
            grid = replace(grid, job=job_of(asked_job, file, plan, seed))
        prepared = prepare(file, grid, store)
    reports = _simulated(prepared, store, processes, timeline)
    if plot is not None and drawn is not None:
        write_bytes(plot, drawn(reports, plot.suffix[1:].lower()))
    _print(prepared, reports, as_json=as_json, by_model=by_model)


def _check_numbers(
    duration: float, slo_scale: float, max_rate: float | None, alpha: float | None
) -> None:
    if not 0 < duration <= _LONGEST_S:
        raise typer.BadParameter(f"--duration {duration:g}: more than 0 s, at most a week")
    if not 0 < slo_scale < math.inf:
        raise typer.BadParameter(f"--slo-scale {slo_scale:g}: expected a number above 0")
    if alpha is not None and not math.isfinite(alpha):
        raise typer.BadParameter(f"--alpha {alpha:g}: expected a number from 0 up")
    if max_rate is not None and alpha is None:
        raise typer.BadParameter("--max-rate needs --alpha")
    if max_rate is not None and not 0 < max_rate <= 1e6:
        raise typer.BadParameter(f"--max-rate {max_rate:g}: expected requests/s above 0")


def _scales(text: str) -> tuple[float, ...]:
    try:
        scales = tuple(float(part) for part in text.split(","))
    except ValueError:
        scales = ()
    if not scales or not all(0 < scale <= 1e6 for scale in scales):
        raise typer.BadParameter(f"--rate-scale {text}: expected numbers above 0, as 0.5,1,2")
    if len(set(scales)) < len(scales):
        raise typer.BadParameter(f"--rate-scale {text}: a number is there twice")
    return scales


def _systems(text: str) -> tuple[System, ...]:
    try:
        systems = tuple(system_named(part.strip()) for part in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"--systems: {error}") from error
    if len({system.name for system in systems}) < len(systems):
        raise typer.BadParameter(f"--systems {text}: a system is there twice")
    return systems


def _simulated(
    prepared: Prepared, cache: Cache, num_processes: int, timeline: Path | None
) -> list[CaseReport]:
    with _progress(len(prepared.cases)) as progress:
        if timeline is not None:
            return traced(prepared, timeline, progress)
        return reports_of(prepared, cache, num_processes, progress)


@contextmanager
def _progress(num_cases: int) -> Iterator[Callable[[float, int], None]]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f}%"),
        MofNCompleteColumn(),
    )
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("simulating", total=num_cases)
        yield lambda done, total: bar.update(task, completed=done)


def _print(prepared: Prepared, reports: list[CaseReport], *, as_json: bool, by_model: bool) -> None:
    if as_json:
        content = {
            "cases": [report.model_dump(mode="json") for report in reports],
            "refused": [
                {"system": each.system, "rate_scale": each.rate_scale, "reason": each.reason}
                for each in prepared.refused
            ],
        }
        typer.echo(json.dumps(content, indent=2))
        return
    console = Console(highlight=False)
    has_classes = reports[0].classes is not None
    lines = class_lines(reports) if has_classes else comparison_lines(reports, by_model=by_model)
    for line in lines:
        console.print(line, soft_wrap=True)
    for each in prepared.refused:
        reason = f"{each.system} at rate scale {each.rate_scale:g}: {each.reason}"
        console.print(reason, style="red", soft_wrap=True, markup=False)


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield
