"""`muxcluster place`: what goes where, and what to expect of it."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from muxcluster.api.planning import with_objective
from muxcluster.cli.placing.files import write_bytes
from muxcluster.cli.placing.inputs import ProfileOption, curves_file, with_profile
from muxcluster.cli.placing.outcome import REPLANNING, Outcome, Solver, solve
from muxcluster.cli.placing.reports import Judged
from muxcluster.cli.terminal.telling import tell
from muxcluster.cli.views.backlog import batch_lines
from muxcluster.cli.views.check import check_lines
from muxcluster.cli.views.explanation import answer_lines
from muxcluster.cli.views.known import known_content, known_lines
from muxcluster.cli.views.moves import difference_lines
from muxcluster.cli.views.pictures import picture_of
from muxcluster.cli.views.plan import plan_lines
from muxcluster.cli.views.plan_summary import summary_lines
from muxcluster.config.hub import Fetching
from muxcluster.config.load import Config, load_config
from muxcluster.config.planfile import read_plan
from muxcluster.config.planning import refusals
from muxcluster.core.errors import ConfigError, MuxClusterError
from muxcluster.placement.review.explain import explain as explain_model
from muxcluster.sim.cases.check import check_plan, span_of


class Method(StrEnum):
    """How the plan is found."""

    GREEDY = "greedy"
    EXACT = "exact"
    SPATIAL = "spatial"
    MEMORY_GREEDY = "memory-greedy"
    COMPAT = "compat"


class Objective(StrEnum):
    """What the plan maximises."""

    THROUGHPUT = "throughput"
    WEIGHTED = "weighted"
    GOODPUT = "goodput"
    FAIR = "fair"
    FEWEST_GPUS = "fewest-gpus"


_LONGEST_S = 86_400.0


def place(  # noqa: PLR0913 - each parameter is an option of the command line
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="muxcluster.yaml", show_default=False)
    ] = None,
    method: Annotated[
        Method,
        typer.Option(
            help="greedy: search, with a bound on how far it is from the best; exact: set "
            "partition, to a proven end where time allows; spatial: one model a mesh; "
            "memory-greedy: where most memory is free; compat: MuxServe's own objective. "
            "Example: --method exact"
        ),
    ] = Method.GREEDY,
    objective: Annotated[
        Objective | None,
        typer.Option(
            help="Instead of the file's policy.objective. Example: --objective goodput",
            show_default=False,
        ),
    ] = None,
    time_limit: Annotated[
        float,
        typer.Option(
            min=0,
            max=_LONGEST_S,
            help="Seconds for proving how good the plan is. Example: --time-limit 60",
        ),
    ] = 10.0,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print plan.json alone; all else goes to stderr. "
            "Example: muxcluster place c.yaml --json | jq .units",
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write plan.json to this file. Example: --out plan.json")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the plan, .svg or .png. Example: --plot plan.svg"),
    ] = None,
    explain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="Why the model is where it is, and what other places would cost. "
            "Example: --explain chat-7b",
        ),
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHANGE",
            help="Plan as if the file were changed and show the difference; may be repeated. "
            "Example: --what-if add:llama-2-7b,rate=2 --what-if remove:chat-7b "
            "--what-if rate:chat-7b=x2 --what-if batch:chat-7b=2e9 (tokens a day) "
            "--what-if gpus:a=4 --what-if residency:chat-7b=on-demand "
            "--what-if quantize:chat-7b=int8 --what-if kv_dtype:chat-7b=int8",
        ),
    ] = None,
    from_plan: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="PLAN",
            help="Go on from this plan: move models only where that is worth it. "
            "Example: --from plan.json",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Simulate the plan for a minute or two and show what it predicts beside what "
            "comes out. Example: muxcluster place c.yaml --check",
        ),
    ] = False,
    profile: ProfileOption = None,
    known: Annotated[
        bool,
        typer.Option(
            "--known",
            help="List the shapes (models[].shape) and the GPUs (cluster.nodes[].gpu) that are "
            "known by name, and plan nothing. Example: muxcluster place --known",
        ),
    ] = False,
) -> None:
    """Plan which models of CONFIG share which GPUs; nothing is started, no weights are read.

    Exit code 2 where a file or an option is wrong or the models do not fit.

    Example: muxcluster place muxcluster.yaml --out plan.json --plot plan.svg
    """
    if known:
        _show_known(config, as_json=as_json)
        return
    if config is None:
        raise typer.BadParameter("give a configuration, or --known to see what it can name")
    if not math.isfinite(time_limit):
        raise typer.BadParameter("--time-limit is not a number of seconds")
    if from_plan is not None and method.value not in REPLANNING:
        raise typer.BadParameter(f"--from needs --method {' or '.join(REPLANNING)}")
    drawn: Callable[[Judged, str], bytes] | None = None
    if plot is not None:
        drawn = picture_of("muxcluster.cli.views.plot.plan", plot)
    file = _configured(config, objective, profile)
    current = None if from_plan is None else read_plan(from_plan, file)
    curves = curves_file(file, profile) if method is Method.COMPAT else None
    with _waiting():
        outcome = solve(file, Solver(method.value, time_limit, curves), current, what_if or [])
        answers = [_explained(outcome.after, name) for name in explain or []]
    checked = [_checked(file, outcome.after)] if check else []
    if out is not None:
        write_bytes(out, (outcome.after.plan.to_json() + "\n").encode())
    if plot is not None and drawn is not None:
        write_bytes(plot, drawn(outcome.after, plot.suffix[1:].lower()))
    notes = [*_notes(outcome, [*answers, *checked])]
    with _writing():
        if as_json:
            typer.echo(outcome.after.plan.to_json())
            _print(notes, to_stderr=True)
            return
        table = [] if what_if or explain else [*plan_lines(outcome.after), Text()]
        _print([*table, *notes, *batch_lines(outcome.after), *summary_lines(outcome.after)])


def _show_known(config: Path | None, *, as_json: bool) -> None:
    if config is not None:
        raise typer.BadParameter(f"--known goes without a configuration, {config} here")
    with _writing():
        if as_json:
            typer.echo(json.dumps(known_content(), indent=2))
        else:
            _print(known_lines())


def _configured(path: Path, objective: Objective | None, profile: Path | None) -> Config:
    config = load_config(path, Fetching(tell=tell))
    if objective is not None:
        config = with_objective(config, objective.value)
    return config if profile is None else with_profile(config, profile)


def _explained(judged: Judged, name: str) -> list[Text]:
    try:
        found = explain_model(judged.problem, judged.plan, name)
    except ValueError as error:
        raise ConfigError(f"--explain {name}", "", str(error)) from error
    return [*answer_lines(judged, found)]


def _checked(file: Config, judged: Judged) -> list[Text]:
    with _waiting("simulating"), refusals(file):
        found = check_plan(judged.problem, judged.plan, span_of(judged.problem))
    return [*check_lines(judged, found)]


def _notes(outcome: Outcome, answers: Iterable[Iterable[Text]]) -> Iterator[Text]:
    """Yield what was asked beside the plan: explanations, then the difference."""
    for answer in answers:
        yield from answer
        yield Text()
    difference = outcome.difference()
    if difference is not None and outcome.before is not None:
        yield from difference_lines(outcome.before, outcome.after.plan, difference)
        yield Text()


def _print(lines: Iterable[Text], *, to_stderr: bool = False) -> None:
    console = Console(highlight=False, stderr=to_stderr)
    for line in lines:
        console.print(line, soft_wrap=True)


@contextmanager
def _writing() -> Iterator[None]:
    """Replace letters that the terminal lacks by question marks, and report a full disk in one
    line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MuxClusterError(f"the plan cannot be printed: {error.strerror}") from error


@contextmanager
def _waiting(what: str = "planning") -> Iterator[None]:
    """Show a spinner on stderr if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield
